"""node.sh of a node reached directly, as /bin/sh runs it: PATH, the setup lines and the inventory's values."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.files import node_script
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request


def _run(home: Path, program: str, outside: Mapping[str, str], **fields: object) -> subprocess.CompletedProcess[str]:
    """Run node.sh with `program`, a shell script, as the inventory's Python."""
    python = home / "env" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    inventory = Inventory(nodes=(Node(name="n0", python="~/env/bin/python3", **fields),))  # type: ignore[arg-type]
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b1")
    (home / "node.sh").write_text(node_script(plan, plan.head))
    argv = ["/bin/sh", str(home / "node.sh"), "--rendezvous", "10.0.0.1 5 -"]
    return subprocess.run(argv, env={"HOME": str(home), **outside}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("outside", "env", "path"),
    [
        ({"PATH": "/usr/bin:/a b"}, {}, "HOME/env/bin:/usr/bin:/a b"),
        ({"PATH": ""}, {}, "HOME/env/bin"),
        ({"PATH": "/usr/bin"}, {"PATH": "/mine:$x"}, "/mine:$x"),
    ],
)
def test_folder_of_python_is_first_on_path_unless_the_inventory_sets_path(
    outside: dict[str, str], env: dict[str, str], path: str, tmp_path: Path
) -> None:
    done = _run(tmp_path, 'echo "$PATH"', outside, env=env)
    assert (done.stdout, done.stderr) == (path.replace("HOME", str(tmp_path)) + os.linesep, "")
