"""Modules that ranks import from a working folder instead of the code that was sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.portable.checks.editable import SentCode, editable_warnings
from orchestrator.run import Program, Request


@pytest.mark.parametrize(
    ("words", "cwd", "pythonpath", "folder", "advice"),
    [
        (("train.py",), "", None, "src", "src"),
        (("scripts/train.py",), "", None, "", "."),
        (("train.py",), "scripts", None, "src", "../src"),
        (("-m", "pkg.train"), "", None, "src", "src"),
        (("train.py",), "", None, "", None),
        (("-m", "pkg.train"), "", None, "", None),
        (("train.py",), "", "lib:src/", "src", None),
        (("train.py",), "scripts", "../src", "src", None),
        (("train.py",), "", None, "../elsewhere", None),
    ],
)
def test_folder_that_hides_the_sent_code_from_python_is_a_warning(
    tmp_path: Path, words: tuple[str, ...], cwd: str, pythonpath: str | None, folder: str, advice: str | None
) -> None:
    env = {} if pythonpath is None else {"PYTHONPATH": pythonpath}
    inventory = Inventory(name="t", env=env, nodes=(Node(name="n0"), Node(name="n1")))
    request = Request("ssh", Program("python", words, cwd=cwd or None))
    plan = make_plan(inventory, request, run_id="t-20260102-030405-0abc", bundle="b")
    folders = {name: [str(tmp_path / folder), "/opt/x"] for name in ("n0", "n1")}
    paths = {node.name: node.env.get("PYTHONPATH", "") for node in plan.nodes}
    program = plan.program
    warnings = list(
        editable_warnings(SentCode(str(tmp_path), program.cwd or "", program.import_folder), paths, folders)
    )
    assert len(warnings) == (advice is not None)
    for warning in warnings:
        assert warning.startswith("n[0-1]: the ranks import modules from ")
        assert f"env: {{PYTHONPATH: {advice}}} in the inventory" in warning
