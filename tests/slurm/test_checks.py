"""Submissions that are refused before sbatch runs: the message has the field, the value and what the cluster has."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster

HERE = "partitions here: debug (UP, 4 nodes, time limit 01:00:00)"


def _scontrol(*words: str) -> None:
    subprocess.run(["scontrol", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def partitions(cluster: Cluster) -> Iterator[None]:
    """Beside debug, `small` with two nodes and `one` with one node per job; at the end debug is UP."""
    _scontrol("create", "PartitionName=small", "Nodes=n[0-1]", "MaxTime=2-00:00:00")
    _scontrol("create", "PartitionName=one", "Nodes=n[0-3]", "MaxNodes=1", "MaxTime=30")
    yield
    cluster.end_jobs()
    _scontrol("update", "PartitionName=debug", "State=UP")
    _scontrol("delete", "PartitionName=small")
    _scontrol("delete", "PartitionName=one")


def _refused(cluster: Cluster, orch: Orch, *words: str, code: int = 2) -> str:
    """The message of a refused submission; the queue must be empty and the run FAILED."""
    done = orch("submit", *words, "--detach", "--", "true", code=code)
    assert not cluster.jobs()
    assert orch.status()["state"] == "FAILED"
    return done.stderr


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ({"partition": "debuq"}, "slurm.partition: debuq is not known to this cluster; did you mean debug?"),
        ({"time": "1-00:00:00"}, "slurm.time: 1-00:00:00 is more than partition debug allows: 01:00:00"),
        ({"time": "61"}, "slurm.time: 61 is more than partition debug allows: 01:00:00"),
        ({"time": "UNLIMITED"}, "slurm.time: UNLIMITED is more than partition debug allows: 01:00:00"),
        ({"time": None, "options": ["--time=02:00:00"]}, "slurm.time: 02:00:00 is more than partition debug allows"),
    ],
)
def test_partition_or_time_beyond_the_cluster_is_refused_with_its_partitions(
    slurm: dict[str, object], message: str, cluster: Cluster, tmp_path: Path
) -> None:
    """sbatch itself accepts a time over the limit, and the job waits forever."""
    cluster.inventory(tmp_path, slurm=slurm)
    stderr = _refused(cluster, Orch(tmp_path, env=cluster.env))
    assert message in stderr
    assert HERE in stderr


def test_more_nodes_than_the_partition_has_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, nodes=[{"name": "n[0-8]"}])
    stderr = _refused(cluster, Orch(tmp_path, env=cluster.env))
    assert "nodes: 9 are requested, and partition debug has 4" in stderr
    assert HERE in stderr


@pytest.mark.extended
def test_named_node_that_slurm_does_not_have_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, nodes=[{"name": "n[2-5]"}])
    stderr = _refused(cluster, Orch(tmp_path, env=cluster.env), "--nodes", "n[3-4]")
    assert "nodes: this cluster has no n4; partition debug has n[0-3]" in stderr


@pytest.mark.extended
@pytest.mark.usefixtures("partitions")
def test_named_node_of_another_partition_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, slurm={"partition": "small"})
    stderr = _refused(cluster, Orch(tmp_path, env=cluster.env), "--nodes", "n[1-2]")
    assert "nodes: n2 is not in partition small, which has n[0-1]" in stderr
    assert "small (UP, 2 nodes, time limit 2-00:00:00)" in stderr


@pytest.mark.extended
@pytest.mark.usefixtures("partitions")
def test_more_nodes_than_a_partition_allows_per_job_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, slurm={"partition": "one"})
    stderr = _refused(cluster, Orch(tmp_path, env=cluster.env), "-j", "2x1")
    assert "nodes: 2 are requested, and partition one allows 1 a job" in stderr
    assert "one (UP, 4 nodes, at most 1 a job, time limit 00:30:00)" in stderr


@pytest.mark.extended
@pytest.mark.usefixtures("partitions")
def test_job_is_submitted_if_one_of_its_partitions_can_run_it(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, slurm={"partition": "one,small", "time": "1-00"})
    orch = Orch(tmp_path, env=cluster.env)
    orch("submit", "-j", "2x1", "--", "true")
    stderr = _refused(cluster, orch, "-j", "3x1")
    assert "3 are requested, and partition one allows 1 a job" in stderr
    assert "3 are requested, and partition small has 2" in stderr


@pytest.mark.extended
@pytest.mark.usefixtures("partitions")
def test_partition_that_is_down_ends_the_submission_with_4(cluster: Cluster, tmp_path: Path) -> None:
    _scontrol("update", "PartitionName=debug", "State=DOWN")
    cluster.inventory(tmp_path)
    stderr = _refused(cluster, Orch(tmp_path, env=cluster.env), code=4)
    assert "no job starts in debug, which is not UP now" in stderr
    assert "debug (DOWN, 4 nodes" in stderr


def test_job_without_a_partition_is_submitted_with_a_warning(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, slurm={"partition": None, "time": "02:00:00"})
    orch = Orch(tmp_path, env=cluster.env)
    done = orch("submit", "--detach", "-j", "1x1", "--", "true")
    assert "warning: slurm.time: 02:00:00 is more than partition debug allows: 01:00:00" in done.stderr
    assert len(cluster.jobs()) == 1


@pytest.mark.extended
def test_time_limit_is_not_checked_if_a_qos_may_lift_it(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, slurm={"qos": "long", "time": "02:00:00"})
    Orch(tmp_path, env=cluster.env)("submit", "--detach", "-j", "1x1", "--", "true")
    assert len(cluster.jobs()) == 1


@pytest.mark.extended
def test_account_is_not_checked_without_accounting(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, slurm={"account": "nobody", "qos": "none"})
    Orch(tmp_path, env=cluster.env)("submit", "-j", "1x1", "--", "true")


@pytest.mark.extended
def test_submission_continues_with_a_warning_if_scontrol_fails(cluster: Cluster, tmp_path: Path) -> None:
    """sbatch decides: here only scontrol is broken."""
    cluster.inventory(tmp_path)
    broken = tmp_path / "bin" / "scontrol"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'Unable to contact slurm controller (connect failure)' >&2\nexit 1\n", "utf-8")
    broken.chmod(0o755)
    orch = Orch(tmp_path, env={**cluster.env, "PATH": f"{broken.parent}:{cluster.env['PATH']}"})
    done = orch("submit", "-j", "1x1", "--", "true")
    assert "warning: nothing was checked before the submission" in done.stderr
    assert "Unable to contact slurm controller" in done.stderr


@pytest.mark.parametrize("field", ["name: 'a\\nb'", "slurm: {options: ['--comment=a\\n#SBATCH -x']}"])
def test_line_break_in_a_name_or_option_is_refused(field: str, cluster: Cluster, tmp_path: Path) -> None:
    text = field.replace("'", '"') + "\nnodes: [{name: n0}]\n"
    (tmp_path / "inventory.yaml").write_text(text, "utf-8")
    done = Orch(tmp_path, env=cluster.env)("submit", "--", "true", code=2)
    assert "inventory.yaml:1: " in done.stderr
    assert "\\n" in done.stderr
    assert not cluster.jobs()
