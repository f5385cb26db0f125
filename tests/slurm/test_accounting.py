"""A job that squeue and scontrol have forgotten, on a cluster with accounting: sacct has its final state."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster, open_cluster
from tests.until import until


@pytest.fixture
def orch(accounted_cluster: Cluster, tmp_path: Path) -> Orch:
    accounted_cluster.inventory(tmp_path)
    return Orch(tmp_path, env=dict(accounted_cluster.env))


def _command(pid: int) -> str | None:
    """The command of a process; None if there is none. Another process may have the pid of one that has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except OSError:
        return None


def _is_forgotten(cluster: Cluster, job: str) -> bool:
    show = ["scontrol", "show", "job", job]
    return subprocess.run(show, env=cluster.env, check=False, capture_output=True).returncode != 0


def _submit_held(orch: Orch, cluster: Cluster) -> tuple[str, str]:
    text = (orch.cwd / "inventory.yaml").read_text("utf-8")
    if "--hold" not in text:
        (orch.cwd / "inventory.yaml").write_text(text.replace("slurm:", "slurm:\n  options: ['--hold']"))
    run = orch("submit", "--detach", "-j", "1x1", "--", "true").stdout.strip()
    job = str(orch.status(run)["slurm_job"])
    assert cluster.jobs()[job] == "PENDING"
    return run, job


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_jobs_that_slurmctld_has_forgotten_are_judged_by_sacct(orch: Orch, accounted_cluster: Cluster) -> None:
    done = orch("submit", "--detach", "-j", "2x1", "--", "true").stdout.strip()
    held = [_submit_held(orch, accounted_cluster) for _ in range(2)]
    jobs = [job for _, job in held]
    subprocess.run(["scancel", *jobs], env=accounted_cluster.env, check=True)
    done_job = json.loads((orch.home / "runs" / done / "run.json").read_text("utf-8"))["slurm_job"]
    for job in (done_job, *jobs):
        until(partial(_is_forgotten, accounted_cluster, job), deadline_s=180, awaited="slurmctld to forget the job")
    listed = {record["id"]: record for record in json.loads(orch("list", "--all", "--json").stdout)}
    cancelled = ("STOPPED", f"the job was cancelled by user {os.geteuid()}")
    assert [(listed[run]["state"], listed[run]["message"]) for run, _ in held] == [cancelled] * 2
    status = orch.status(done)
    assert status["state"] == "DONE"
    queue = status["queue"]
    assert (queue["job"], queue["state"], queue["limit"], queue["node_count"]) == (
        done_job,
        "COMPLETED",
        "00:10:00",
        "2",
    )
    assert "elapsed 00:00:" in orch("status", done).stdout


@pytest.mark.extended
@pytest.mark.processes
@pytest.mark.accounting
def test_teardown_leaves_no_database_behind() -> None:
    with open_cluster(accounted=True) as cluster:
        pids = cluster.daemons()
        assert {"mariadbd", "slurmdbd"} <= set(pids.values())
    until(lambda: all(_command(pid) != name for pid, name in pids.items()), awaited="the daemons to end")
    assert not cluster.folder.exists()
