"""--after RUN: the dependency on the job of a recorded run, from records alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.plan.make import make_plan
from orchestrator.records.runs import home_store
from orchestrator.run import LauncherName, Program, Request, RunRecord, RunState
from orchestrator.usecases.launch.dependencies import with_dependencies

INVENTORY = Inventory(
    name="demo", nodes=(Node(name="n0", workdir="/data"),), slurm=SlurmOptions(dependency="singleton")
)


def _record(name: str, state: str, job: str | None = "7", launcher: LauncherName = "slurm", sweep: str = "") -> None:
    """Record a run that the store finds by this name."""
    request = Request(launcher, Program("executable", ("true",)))
    plan = make_plan(INVENTORY, request, run_id=f"{name}-20260102-030405-0abc", bundle="b", home="/home/u")
    fields = {"created": "", "request": {}, "inventory": {}, "code": {}, "versions": {}}
    record = RunRecord(plan.run_id, launcher, RunState(state), started=True, slurm_job=job, **fields)  # type: ignore[arg-type]
    folder = home_store().create(replace(record, sweep=sweep or None))
    folder.write_plan(plan)


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    _record("done", "DONE")
    _record("failed", "FAILED")
    _record("refused", "FAILED", job=None)
    _record("ssh", "DONE", job=None, launcher="ssh")
    for task, state in enumerate(("DONE", "DONE", "LOST")):
        _record(f"task{task}", state, job=f"9_{task}", sweep="swept-20260102-030405-0abc")
    for task, state in enumerate(("FAILED", "LOST", "RUNNING")):
        _record(f"unended{task}", state, job=f"8_{task}", sweep="mixed-20260102-030405-0abc")


@pytest.mark.parametrize(
    "word", ["done", "afterany:failed", "afternotok:failed", "after:failed", "afterany:swept-2026"]
)
def test_condition_that_an_ended_run_satisfies_is_dropped_with_a_warning(word: str) -> None:
    inventory, [warning] = with_dependencies(INVENTORY, [word])
    assert inventory.slurm.dependency == "singleton"
    assert warning.startswith(f"--after {word}: Slurm job ")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("failed", "--after failed: the run is FAILED, so a job that waits for it by afterok would never start"),
        ("afternotok:done", "the run is DONE, so a job that waits for it by afternotok would never start"),
        ("swept-2026", "the run is DONE, LOST, so a job"),
        ("refused", "run refused-20260102-030405-0abc is FAILED and has no Slurm job"),
        ("ssh", "was started over SSH, and Slurm can only wait for its own jobs"),
        ("nothing", "no run 'nothing'"),
        ("later:done", "later is not a kind of dependency; allowed: afterok, afternotok, afterany, after"),
    ],
)
def test_run_that_no_job_can_wait_for_is_refused(word: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_dependencies(INVENTORY, [word])
    assert message in str(caught.value)
    assert caught.value.hint


@pytest.mark.processes
def test_sweep_of_which_one_run_has_failed_cannot_be_waited_for_by_afterok() -> None:
    with pytest.raises(UsageError, match=r"is FAILED, LOST, .*a job that waits for it by afterok would never start"):
        with_dependencies(INVENTORY, ["mixed-2026"])
    inventory, warnings = with_dependencies(INVENTORY, ["afterany:mixed-2026"])
    assert (inventory.slurm.dependency, warnings) == ("singleton,afterany:8", [])


def test_run_submitted_on_another_machine_is_refused() -> None:
    elsewhere = INVENTORY.model_copy(update={"slurm": SlurmOptions(login="login0")})
    with pytest.raises(UsageError, match="was submitted on this machine, and this one would be on login0"):
        with_dependencies(elsewhere, ["done"])
