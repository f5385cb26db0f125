"""Cancelling Slurm jobs, with recorded output of squeue."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.endpoint.observation import RunTrace
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm.this_machine import ThisMachine
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan, Sweep
from orchestrator.run import Program, Request

RUNS = tuple(f"demo-20260102-030405-000{task}" for task in range(3))


class ArrayHost(ThisMachine):
    """A login node whose Slurm runs the array 120 of RUNS; sbatch has recorded the array's id there."""

    def __init__(self, plan: LaunchPlan) -> None:
        super().__init__(plan.head)
        self.cancelled: list[str] = []

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """List the tasks, which are in the folder of the first run, with their states."""
        if argv[0] == "scancel":
            self.cancelled.append(argv[1])
        rows = []
        for task in range(len(RUNS)):
            is_cancelled = {"120", f"120_{task}"} & set(self.cancelled)
            state = "CANCELLED" if is_cancelled else "RUNNING"
            rows.append(f"120_{task}|{state}|None|n0|1|0:01|1:00|debug|N/A|n0|/w/runs/{RUNS[0]}/attempt-1|demo")
        return subprocess.CompletedProcess(argv, 0, "\n".join(rows) + "\n", "")

    def withdraw(self, plan: LaunchPlan) -> str | None:
        """The id that sbatch printed, in the folder of the first run."""
        return "120" if plan.run_id == RUNS[0] else None

    def trace(self, plan: LaunchPlan, *, log_bytes: int = 0) -> RunTrace | None:  # no folder is left
        """No folder."""
        return None


def _plan(run_id: str) -> LaunchPlan:
    inventory = Inventory(name="demo", nodes=(Node(name="n0"),))
    request = Request("slurm", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id=run_id, bundle="b", home="/home/u")
    return replace(plan, sweep=Sweep("demo-20260102-030405-0abc", RUNS))


@pytest.mark.parametrize("task", [0, 1])
def test_run_of_a_sweep_without_a_recorded_job_is_stopped_alone(task: int) -> None:
    host = ArrayHost(_plan(RUNS[task]))
    assert SlurmLauncher(_plan(RUNS[task]), host).stop(None, grace_s=0.0) == []
    assert host.cancelled == [f"120_{task}"]


def test_undone_launch_of_a_sweep_cancels_the_whole_array() -> None:
    host = ArrayHost(_plan(RUNS[0]))
    launcher = SlurmLauncher(_plan(RUNS[0]), host)
    launcher._may_be_submitted = True  # as after a submission
    assert launcher.undo() == []
    assert host.cancelled == ["120"]


class SilentHost(ArrayHost):
    """A login node whose slurmctld is down, from the beginning or once it has taken the cancellation; each query takes 5 s."""

    def __init__(self, plan: LaunchPlan, *, answers_until_cancelled: bool = False) -> None:
        super().__init__(plan)
        self.now_s, self.answers_until_cancelled = 0.0, answers_until_cancelled

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if self.answers_until_cancelled and not self.cancelled:
            return super().run(argv)
        self.now_s += 5.0
        return subprocess.CompletedProcess(argv, 1, "", "slurm_load_jobs error: Unable to contact slurm controller")


@pytest.mark.parametrize("answers_until_cancelled", [False, True])
def test_stop_does_not_wait_long_for_a_controller_that_is_down(
    monkeypatch: pytest.MonkeyPatch, *, answers_until_cancelled: bool
) -> None:
    host = SilentHost(_plan(RUNS[1]), answers_until_cancelled=answers_until_cancelled)
    monkeypatch.setattr("time.monotonic", lambda: host.now_s)
    monkeypatch.setattr("time.sleep", lambda _: None)
    [left] = SlurmLauncher(_plan(RUNS[1]), host).stop("120_1", grace_s=10.0)
    assert host.now_s <= 20.0
    if answers_until_cancelled:
        assert left.startswith("Slurm job 120_1 was cancelled, and is not known to be over: slurmctld does not answer")
    else:
        assert left == (
            "Slurm job 120_1 was not cancelled, because slurmctld does not answer (squeue: Unable to contact slurm controller): "
            f"`orch stop {RUNS[1]}` cancels it once `scontrol ping` reports UP; until then, `orch stop {RUNS[1]} --save --grace 1s` ends its "
            "ranks, by a file in their folder"
        )
