"""The findings of the checks and the changes since the last good run, for a diagnosis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.findings import Finding, Severity
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.records.runs import home_store
from orchestrator.records.store import RunFolder
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.usecases.diagnose.context import changes_since_success, findings_of


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
