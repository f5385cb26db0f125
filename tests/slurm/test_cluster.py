"""Tests of the Slurm cluster that other tests build on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.grounds.slurm import Cluster, open_cluster
from tests.until import until


def run(cluster: Cluster, *argv: str) -> str:
    return subprocess.run(argv, env=cluster.env, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.extended
def test_a_job_runs_on_four_nodes(cluster: Cluster) -> None:
    assert len(run(cluster, "srun", "-N4", "hostname").split()) == 4
    named = run(cluster, "srun", "-N4", "sh", "-c", "echo $SLURMD_NODENAME").split()
    assert sorted(named) == list(cluster.nodes)


@pytest.mark.extended
def test_two_tasks_on_each_of_four_nodes_run_at_once(cluster: Cluster) -> None:
    assert len(run(cluster, "srun", "-N4", "--ntasks-per-node=2", "hostname").split()) == 8


@pytest.mark.extended
def test_a_batch_job_is_listed_and_ends_when_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    script = "srun --ntasks-per-node=1 sleep 1000"
    job = run(cluster, "sbatch", "-N2", "--parsable", f"--output={tmp_path}/out", "--wrap", script).strip()
    until(lambda: cluster.jobs().get(job) == "RUNNING", awaited="the job to run")
    until(lambda: list(cluster.processes().values()).count("sleep") == 2, awaited="the job's processes")
    cluster.end_jobs()
    assert cluster.jobs() == {}
    assert cluster.processes() == {}


@pytest.mark.extended
def test_commands_in_this_process_reach_the_cluster(cluster: Cluster) -> None:
    assert os.environ["SLURM_CONF"] == str(cluster.conf)


@pytest.mark.extended
def test_there_is_no_accounting(cluster: Cluster) -> None:
    done = subprocess.run(["sacct"], env=cluster.env, check=False, capture_output=True, text=True)
    assert "accounting storage is disabled" in done.stderr


@pytest.mark.extended
def test_inventory_names_the_four_nodes(cluster: Cluster, tmp_path: Path) -> None:
    text = cluster.inventory(tmp_path, devices=2, slurm={"account": "x"}).read_text(encoding="utf-8")
    for part in ("n[0-3]", "devices: 2", "account: x", "partition: debug"):
        assert part in text


@pytest.mark.extended
@pytest.mark.processes
@pytest.mark.slurm
def test_teardown_leaves_no_process_and_no_folder() -> None:
    with open_cluster() as cluster:
        run(cluster, "sbatch", "-N4", "--output=/dev/null", "--wrap", "srun setsid sleep 1000")
        until(lambda: list(cluster.processes().values()).count("sleep") == 4, awaited="the job's processes")
        pids = cluster.processes()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not cluster.folder.exists()
