"""The diagnosis at the end of a run never hides its outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.actions.diagnose_failure import diagnose_failure
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.run import Failure, Program, Request, RunState
from orchestrator.store import UnrecordedRun

if TYPE_CHECKING:
    from orchestrator.launchers.base import Launcher


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UnrecordedRun:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))  # without signatures of the user
    request = Request("ssh", Program("executable", ("true",)))
    inventory = Inventory(name="t", nodes=(Node(name="n0"),))
    run = UnrecordedRun.of(make_plan(inventory, request, run_id="t-20260102-030405-0abc", bundle="b"))
    failure = Failure(FailureClass.CODE, Retry.NEVER)
    run.change(lambda record: replace(record, state=RunState.FAILED, failure=failure))
    return run


def test_an_error_of_the_diagnosis_is_a_warning(run: UnrecordedRun) -> None:
    warnings: list[str] = []
    broken = cast("Launcher", SimpleNamespace(attempt=lambda: 1 / 0, attempt_folders=None))
    assert diagnose_failure(run, broken, warnings.append) == run.record
    assert warnings == ["the failure could not be diagnosed: division by zero"]


def test_an_interrupt_ends_the_diagnosis(run: UnrecordedRun) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose_failure(run, cast("Launcher", SimpleNamespace(attempt=interrupt, attempt_folders=None)), pytest.fail)


@pytest.mark.parametrize("state", [RunState.STOPPED, RunState.DONE])
def test_other_runs_are_not_diagnosed(run: UnrecordedRun, state: RunState) -> None:
    run.change(lambda record: replace(record, state=state, failure=None))
    assert diagnose_failure(run, cast("Launcher", None), pytest.fail) == run.record
