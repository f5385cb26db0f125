"""A job that Slurm requeues: the same run in its next attempt, in one log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.until import until

# The first attempt sleeps until it is ended, the second one succeeds.
PROGRAM = 'echo "rank $RANK in attempt $ORCH_ATTEMPT"; [ "$ORCH_ATTEMPT" = 2 ] || exec sleep 1000'
LINES = [f"rank {rank} in attempt {attempt}" for attempt in (1, 2) for rank in (0, 1)]


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Orch:
    cluster.inventory(tmp_path)
    return Orch(tmp_path, env=cluster.env)


def _out(text: str) -> list[str]:
    """The ranks' lines, sorted by attempt and rank."""
    lines = [line.partition("] ")[2] for line in text.splitlines() if "] rank " in line and " in attempt " in line]
    return sorted(lines, key=lambda line: line.split()[::-1])


def _submitted(orch: Orch) -> tuple[str, str]:
    """Submit a run and wait until both ranks of the first attempt sleep; returns run and job."""
    run = orch("submit", "--detach", "-j", "2x1", "--", "sh", "-c", PROGRAM).stdout.strip()
    until(lambda: set(LINES[:2]) <= set(orch.printed(run).splitlines()), awaited="the first attempt")
    return run, orch.slurm_job(run)


def test_requeued_job_is_followed_into_its_next_attempt(orch: Orch, cluster: Cluster) -> None:
    run, job = _submitted(orch)
    with orch.start("logs", "-f", run) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        text = following.stdout.readline()
        cluster.requeue(job)
        text += following.stdout.read()
        stderr = following.stderr.read()
    assert following.returncode == 0, stderr
    assert _out(text) == LINES
    assert f"run {run} continues in attempt 2" in stderr
    assert f"run {run} is DONE" in stderr
    assert _out(orch("logs", run).stdout) == LINES
    status = orch.status(run)
    assert (status["state"], status["attempt"]) == ("DONE", 2)


@pytest.mark.extended
def test_run_that_was_requeued_unobserved_is_judged_by_its_last_attempt(orch: Orch, cluster: Cluster) -> None:
    run, job = _submitted(orch)
    cluster.requeue(job)
    status = cluster.wait_for(orch, run, "DONE")
    assert status["attempt"] == 2
    assert {node["agent"]["rendezvous"] for node in status["nodes"]} == {status["nodes"][0]["agent"]["rendezvous"]}
    assert _out(orch("logs", run).stdout) == LINES
    assert _out(orch("logs", "--tail", "3", run).stdout) != LINES


@pytest.mark.extended
def test_requeued_job_is_pending_and_can_be_stopped(orch: Orch, cluster: Cluster) -> None:
    run, job = _submitted(orch)
    cluster.requeue_waiting(job)
    assert orch.status(run)["state"] == "PENDING"
    orch("stop", run)
    assert orch.status(run)["state"] == "STOPPED"
