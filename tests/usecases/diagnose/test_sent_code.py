"""A missing module that was sent with the code, in a folder where Python does not look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.evidence import search_log
from orchestrator.diagnosis.rank_causes import rank_causes
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.records.store import RunFolder
from orchestrator.run import Program, Request
from orchestrator.usecases.diagnose.sent_code import module_folder, with_module_path


@pytest.mark.parametrize(
    ("module", "cwd", "files", "folder"),
    [
        ("mypkg", "", ["train.py", "src/mypkg/__init__.py"], "src"),
        ("mypkg.sub", "", ["src/mypkg/sub/x.py"], "src"),
        ("tools", "exp", ["lib/tools.py", "exp/train.py"], "lib"),
        ("mypkg", "", ["a/b/mypkg/x.py", "c/mypkg/x.py"], "c"),
        ("mypkg", "exp", ["mypkg/x.py", "exp/train.py"], ""),
        ("mypkg", "", ["mypkg/x.py"], None),
        ("mypkg", "", ["src/mypkg/data.json", "src/mypkg_x/a.py"], None),
        ("", "", ["src/a.py"], None),
    ],
)
def test_folder_of_a_module_is_the_one_from_which_it_can_be_imported(
    module: str, cwd: str, files: Sequence[str], folder: str | None
) -> None:
    assert module_folder(module, cwd, files) == folder


def test_remedy_for_a_module_that_was_sent_is_pythonpath_and_no_installation(tmp_path: Path) -> None:
    log = b"ModuleNotFoundError: No module named 'qwen_vl'\n"
    found = rank_causes(search_log([log], "n0/rank-0.err", CATALOGUE))
    run = RunFolder(tmp_path)
    run.plan_folder.mkdir(parents=True)
    program = Program("python", ("train.py",), cwd="exp")
    inventory = Inventory(name="t", nodes=(Node(name="n0"),))
    run.write_plan(make_plan(inventory, Request("ssh", program), run_id="t-20260102-030405-0abc", bundle="b"))
    run.write_code({"exp/train.py": "0", "src/qwen_vl/model/__init__.py": "0"})
    (step,) = with_module_path(found, run).remedy
    assert step.startswith("env: {PYTHONPATH: ../src} in the inventory: ")
    run.write_code({"exp/train.py": "0"})
    assert with_module_path(found, run) == found
    assert "pip install" in found.remedy[0]
