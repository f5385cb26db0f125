"""A program that ends with 0 when it gets a signal, as wrapper scripts do, is not DONE: Slurm or the user has ended it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.until import until

pytestmark = [pytest.mark.extended, pytest.mark.slow, pytest.mark.timeout(300)]

WRAPPED = "trap 'exit 0' TERM USR1 USR2; echo up; while :; do sleep 0.1; done"


def _slurm(cluster: Cluster, *argv: str) -> None:
    subprocess.run(argv, env=cluster.env, check=True, capture_output=True)


@pytest.mark.parametrize("event", ["cancel", "stop", "preemption", "requeue", "time limit"])
def test_program_that_ends_well_after_a_signal_is_never_done(cluster: Cluster, tmp_path: Path, event: str) -> None:
    cluster.inventory(tmp_path)
    orch = Orch(tmp_path, env=cluster.env)
    run = orch("submit", "--detach", "-j", "2x1", "--", "bash", "-c", WRAPPED).stdout.strip()
    until(lambda: orch.printed(run).splitlines().count("up") == 2, awaited="the ranks")
    job = orch.slurm_job(run)
    if event == "cancel":
        _slurm(cluster, "scancel", job)
    elif event == "stop":
        orch("stop", run)
    elif event == "time limit":
        _slurm(cluster, "scontrol", "update", f"JobId={job}", "EndTime=now+2")
    elif event == "preemption":
        cluster.preempt("n0", "n1")
        cluster.start_soon(job)
    else:
        cluster.requeue(job)
    if event in {"preemption", "requeue"}:
        until(lambda: orch.printed(run).splitlines().count("up") == 4, awaited=lambda: orch.printed(run))
        assert orch.status(run)["attempt"] == 2
        orch("stop", run)
    cluster.wait_for(orch, run, "FAILED" if event == "time limit" else "STOPPED")  # fails in any other state
