"""A job whose files do not appear in the working folder, because it is not shared with the nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.inventory import model
from orchestrator.launchers.job import JobStatus
from orchestrator.launchers.slurm import launcher as slurm
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm.this_machine import ThisMachine
from orchestrator.plan.files import node_files
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.names.slurm_options import time_limit_s
from orchestrator.run import Program, Request
from tests.grounds.slurm import Cluster
from tests.until import until


@pytest.fixture
def planned(cluster: Cluster, tmp_path: Path) -> LaunchPlan:
    """A planned run whose first files are written."""
    request = Request("slurm", Program("executable", ("sleep", "1000")), nodes="n0")
    inventory = model.load(cluster.inventory(tmp_path))
    planned = make_plan(inventory, request, run_id="cluster-20260102-030405-0abc", bundle="b")
    for file in node_files(planned)[planned.head.name]:
        path = Path(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, "utf-8")
    return planned


def test_missing_log_of_a_running_job_is_reported_until_it_appears(
    planned: LaunchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = ["sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 1000"]
    job = subprocess.run(sbatch, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    launcher = SlurmLauncher(planned, ThisMachine(planned.head))

    def queue_entry() -> JobStatus:
        queue = launcher.job_status(job)
        assert queue is not None
        return queue

    def reason() -> str:
        assert queue_entry().state == "RUNNING"
        return queue_entry().reason

    until(lambda: time_limit_s(queue_entry().elapsed) >= 2, awaited="the job to run")
    assert reason() == ""
    monkeypatch.setattr(slurm, "LOG_DELAY_S", 1.0)
    assert reason().startswith(f"the job's log is missing from {planned.run_dir(planned.head)}")
    (Path(planned.attempt_dir(planned.head)) / f"slurm-{job}.log").touch()
    assert reason() == ""
    launcher.close()


def test_missing_log_of_a_job_that_never_had_a_node_is_not_reported(planned: LaunchPlan) -> None:
    """slurmctld keeps a FAILED record of the job that it refused."""
    sbatch = ["sbatch", f"--chdir={planned.attempt_dir(planned.head)}", "--mem=64G", "--wrap", "true"]
    assert subprocess.run(sbatch, check=False, capture_output=True, timeout=60).returncode != 0
    launcher = SlurmLauncher(planned, ThisMachine(planned.head))
    queue = launcher.job_status(None)
    assert queue is not None
    assert (queue.state, queue.reason) == ("FAILED", "BadConstraints")
    launcher.close()
