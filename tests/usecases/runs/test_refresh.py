"""A Slurm job that is suspended: Slurm resumes it, and a signal of the user would only confuse that."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.endpoint.observation import AgentRecord, NodeObservation
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.job import JobStatus
from orchestrator.plan.make import make_plan
from orchestrator.records.run_folder import RunFolder, UnrecordedRun
from orchestrator.run import Program, Request, RunState
from orchestrator.usecases.runs.refresh import Refreshed
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.observe import Status

AGENT = AgentRecord(7, 1, 7, "b", "h", "n0", "3.11.7", "n0", 0, (0,), 1, "10.0.0.1 29500 h", 0.0)
STOPPED = NodeObservation("n0", AGENT, alive=True, same_boot=True, finished=None, first_failure=None, stopped=True)


@pytest.mark.parametrize(("state", "warnings"), [("RUNNING", 1), ("SUSPENDED", 0), ("STOPPED", 0)])
def test_only_agents_of_a_running_job_are_to_be_continued_by_kill(tmp_path: Path, state: str, warnings: int) -> None:
    request = Request("slurm", Program("executable", ("true",)))
    plan = make_plan(
        Inventory(name="t", nodes=(Node(name="n0"),)), request, run_id="t-20260102-030405-0abc", bundle="b"
    )
    status = Status(Verdict(RunState.RUNNING), (STOPPED,), JobStatus(state, job="7"), 1)
    refreshed = Refreshed(RunFolder(tmp_path), UnrecordedRun.of(plan).record, status)
    assert sum("kill -CONT 7" in text for text in refreshed.stopped_agents()) == warnings
