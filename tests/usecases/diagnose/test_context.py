"""Findings of the checks, changes since the last good run, and modules that were sent where Python does not look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.evidence import LogSearch
from orchestrator.diagnosis.rank_causes import rank_causes
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.portable.findings import Finding, Severity
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import home_store
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.usecases.diagnose.context import (
    changes_since_success,
    findings_of,
    module_folder,
    with_module_path,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))


def recorded(
    number: int, state: RunState, *, commit: str, inventory: str = "a.yaml", kind: str = "python"
) -> RunFolder:
    """A run that was launched at the given minute."""
    run_id = f"t-20260102-03{number:02}05-0abc"
    plan = make_plan(
        Inventory(name="t", nodes=(Node(name="n0"),)),
        Request("ssh", Program("executable", ("true",))),
        run_id=run_id,
        bundle="b",
    )
    record = RunRecord(
        run_id,
        "ssh",
        state,
        f"2026-01-02T03:{number:02}:05+00:00",
        {"program": {"kind": kind, "args": []}},
        {"file": inventory},
        {"commit": commit},
        {},
    )
    folder = home_store().create(record)
    folder.write_plan(plan)
    return folder


def test_the_last_good_run_of_the_inventory_is_compared() -> None:
    recorded(1, RunState.DONE, commit="one")
    good = recorded(2, RunState.DONE, commit="two")
    recorded(3, RunState.DONE, commit="three", inventory="b.yaml")
    recorded(4, RunState.DONE, commit="four", kind="trainer")
    recorded(5, RunState.STOPPED, commit="five")
    recorded(6, RunState.DONE, commit="of a trial").change(
        lambda record: replace(record, request={**record.request, "is_trial": True})
    )
    failed = recorded(7, RunState.FAILED, commit="seven")
    recorded(8, RunState.DONE, commit="eight")
    success, changes = changes_since_success(failed)
    assert success == good.path.name
    assert ("commit", "two", "seven") in [(change.name, change.first, change.second) for change in changes]
    assert "results" not in {change.topic for change in changes}


def test_without_a_good_run_nothing_is_compared() -> None:
    assert changes_since_success(recorded(1, RunState.FAILED, commit="one")) == ("", [])


def test_findings_about_other_nodes_are_left_out() -> None:
    folder = recorded(1, RunState.FAILED, commit="one")
    assert findings_of(folder, ("n1",)) == ()
    warned = Finding(Severity.WARN, "shm", "/dev/shm is small", nodes=("n1",), evidence="64 MB")
    findings = (
        warned,
        replace(warned, nodes=("n0",)),
        replace(warned, nodes=()),
        replace(warned, severity=Severity.INFO),
    )
    folder.write_findings([finding.to_json() for finding in findings])
    assert findings_of(folder, ("n1",)) == ("shm: n1: /dev/shm is small (64 MB)", "shm: /dev/shm is small (64 MB)")
    assert len(findings_of(folder, ())) == 3


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
    found = rank_causes(LogSearch(CATALOGUE).evidence([log], "n0/rank-0.err"))
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
