"""orch submit --here in a real allocation: the run is a step in a job that outlives it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.slurm.port_thief import orch_with_taken_ports

# In the shell of salloc: a run that ends, one that is stopped, and the queue after each.
SHELL = """
set -x
{orch} submit --here -j 2x2 -- sh -c 'echo "rank $RANK of $WORLD_SIZE on $ORCH_NODE in job $SLURM_JOB_ID"' || exit 11
run=$({orch} submit --detach --here --nodes n2 -- sleep 1000) || exit 12
{orch} list --all >listed
{orch} stop "$run" || exit 13
squeue --noheader --format='job %T' --jobs="$SLURM_JOB_ID" >after
squeue --noheader --steps --format=%j >>after
{orch} submit --here --nodes n1 --set slurm.setup=false -- true
test $? = 1 || exit 16
{orch} submit --here --nodes n0 -- true && exit 14
{orch} submit --here --time 5 -- true && exit 15
{orch} submit -j 1x1 --dry-run -- true >script
"""


def test_run_in_an_allocation_is_a_step_of_it_and_stop_ends_only_that_step(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, devices=2)
    orch = Orch(tmp_path, env=cluster.env)
    command = [
        "salloc",
        "--nodelist=n[1-3]",
        "--job-name=mine",
        "bash",
        "-c",
        SHELL.format(orch=shlex.join(orch.argv(()))),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=orch.environ(), capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, third = orch.records()
    assert [first["state"], second["state"], third["state"]] == ["DONE", "STOPPED", "FAILED"]
    assert third["message"].endswith(
        "this line ended with 1 on n1: false"
    )  # though its step may end before squeue lists it
    job = first["slurm_job"]
    for rank, node in enumerate(("n1", "n1", "n2", "n2")):
        assert f"[{node}:{rank}] rank {rank} of 4 on {node} in job {job}\n" in done.stdout
    assert f"{second['id']} (latest)  slurm     RUNNING" in (tmp_path / "listed").read_text("utf-8")
    assert (tmp_path / "after").read_text("utf-8") == "job RUNNING\n"  # and no step
    assert f"n0 is not in the allocation of Slurm job {job}, which has n[1-3]" in done.stderr
    assert "--time is for a new job" in done.stderr
    assert f"this shell is in Slurm job {job}" in done.stderr
    [script] = (orch.home / "runs" / first["id"]).rglob("step.sh")
    checked = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert "in no Slurm job" in orch("submit", "--here", "--", "true", code=2).stderr


@pytest.mark.extended
def test_task_of_a_job_array_has_nodes_for_a_run_and_a_taken_port_is_retried(cluster: Cluster, tmp_path: Path) -> None:
    orch = orch_with_taken_ports(cluster, tmp_path, thefts=1)
    log = cluster.folder / "task.log"
    script = shlex.join(orch.argv(("submit", "--here", "--", "true")))
    command = ["sbatch", "--wait", "--array=3", "--nodelist=n1", f"--output={log}", f"--wrap={script}"]
    done = subprocess.run(
        command, cwd=tmp_path, env=orch.environ(), capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr + log.read_text("utf-8")
    assert [record["state"] for record in orch.records()] == ["DONE"]
    assert sum("already in use" in line["text"] for line in orch.lines()) == 1
