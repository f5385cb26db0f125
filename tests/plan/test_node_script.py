"""node.sh of a node reached directly, as /bin/sh runs it: PATH, the setup lines and the inventory's values."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.files import node_files, start_command
from orchestrator.plan.make import make_plan
from orchestrator.plan.resolve import Facts, resolve
from orchestrator.run import Program, Request

OUTSIDE = {"PATH": "/usr/bin:/bin"}


def _run(
    home: Path,
    program: str,
    outside: Mapping[str, str] = OUTSIDE,
    *,
    env: dict[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    setup: tuple[str, ...] = (),
    transport: Literal["ssh", "local"] = "ssh",
) -> subprocess.CompletedProcess[str]:
    """Run node.sh with `program`, a shell script, as the inventory's Python."""
    python = home / "env" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    node = Node(name="n0", python="~/env/bin/python3", workdir=str(home), env=env or {})
    inventory = Inventory(nodes=(node,), setup=setup, transport=transport)
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b1")
    for file in node_files(resolve(plan, Facts(defaults={"n0": defaults or {}})))["n0"]:
        Path(file.path).parent.mkdir(parents=True, exist_ok=True)
        Path(file.path).write_text(file.text)
    argv = start_command(plan, plan.head, "10.0.0.1 5 -")
    outside = {"HOME": str(home), **outside}
    return subprocess.run(argv, env=outside, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


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


def test_setup_runs_before_python_and_env_overrides_its_exports(tmp_path: Path) -> None:
    lines = ("words=(in bash)", 'export A="${words[*]}" B=setup; echo printed', "export PATH=/from-setup:$PATH")
    done = _run(tmp_path, 'echo "$A,$B,$PATH,$*"', setup=lines, env={"B": "inventory"}, transport="local")
    assert done.stdout.startswith(f"in bash,inventory,{tmp_path}/env/bin:/from-setup:/usr/bin:/bin,-E ")
    assert done.stdout.endswith("--node-rank 0 --rendezvous 10.0.0.1 5 -\n")
    assert done.stderr == "printed\n"


@pytest.mark.parametrize("line", ["false", "exit 3", "no-such-command --load x", 'echo "oh', "set -u; echo $UNSET"])
def test_failing_line_of_setup_is_named_and_nothing_starts(line: str, tmp_path: Path) -> None:
    done = _run(tmp_path, "echo started", setup=("true", line, "echo after >&2"), transport="local")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.splitlines()[-1].startswith("setup: this line ended with ")
    assert done.stderr.endswith(f": {line}\n")


def test_setup_over_ssh_has_the_functions_of_a_login_shell(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("module() { export LOADED=$2; }\n")
    assert _run(tmp_path, 'echo "$LOADED"', setup=("module load cuda",)).stdout == "cuda\n"


def test_module_and_conda_are_functions_in_setup_though_sh_passes_none_on(tmp_path: Path) -> None:
    home, programs = tmp_path / "modules", tmp_path / "condabin"
    (home / "init").mkdir(parents=True)
    (home / "init" / "bash").write_text("module() { export LOADED=$2; }\n")
    programs.mkdir()
    (programs / "conda").write_text(
        '#!/bin/sh\n[ "$*" = "shell.bash hook" ] && echo "conda() { export CONDA=\\$2; }"\n'
    )
    (programs / "conda").chmod(0o755)
    outside = {"PATH": f"{programs}:/usr/bin:/bin", "MODULESHOME": str(home)}
    lines = ("module load cuda", "conda activate torch")
    done = _run(tmp_path, 'echo "$LOADED $CONDA"', outside, setup=lines, transport="local")
    assert (done.stdout, done.stderr) == ("cuda torch\n", "")


def test_defaults_are_set_where_neither_the_node_nor_setup_lines_nor_the_inventory_set_the_variable(
    tmp_path: Path,
) -> None:
    names = ("OUTSIDE", "SETUP", "INVENTORY", "UNSET")
    done = _run(
        tmp_path,
        f"echo {' '.join(f'${name}' for name in names)}",
        {**OUTSIDE, "OUTSIDE": "outside"},
        env={"INVENTORY": "inventory"},
        setup=("export SETUP=setup",),
        defaults=dict.fromkeys(names, "it's"),
    )
    assert done.stdout == "outside setup inventory it's\n"
