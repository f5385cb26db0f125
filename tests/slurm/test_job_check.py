"""A Slurm job checks the allocated nodes before its first attempt."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster

# An executable is no Python, so that it may be another one on each node; the limit is that of the probe and of the ranks.
FEW_FILES_ON_N1 = '[ "$SLURMD_NODENAME" != n1 ] || ulimit -n 1000'


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Orch:
    nodes = [
        {"name": "n[0-1]", "address": "127.0.0.[10-11]"},
        {"name": "n[2-3]", "address": "127.0.0.[12-13]", "tags": ["spare"]},
    ]
    cluster.inventory(tmp_path, setup=[FEW_FILES_ON_N1], nodes=nodes)
    return Orch(tmp_path, env=dict(cluster.env), checks_jobs=True)


def test_node_that_fails_a_check_ends_the_job_before_its_first_attempt(orch: Orch) -> None:
    done = orch("submit", "--nodes", "n0,n1", "--", "echo", "hello", code=3)
    fault = "FAIL  nofile: n1: a process may open 1000 files"
    assert fault in done.stdout
    assert "hello" not in done.stdout
    status = orch.status()
    assert (status["state"], status["attempt"], status["refused"]) == ("FAILED", 1, True)
    assert status["message"].startswith("the check of the nodes failed, so nothing was started\n  FAIL  nofile: n1: ")
    assert fault in orch("logs", "--stream", "batch").stdout


@pytest.mark.extended
def test_node_that_fails_a_check_is_replaced_by_a_spare(orch: Orch) -> None:
    done = orch("submit", "--nodes", "n0,n1", "--set", "slurm.spare_nodes=1", "--", "sh", "-c", "echo up on $ORCH_NODE")
    assert "the job starts without n1: n1: a process may open 1000 files" in done.stdout
    assert sorted(line.partition("up on ")[2] for line in done.stdout.splitlines() if "] up on" in line) == ["n0", "n2"]


def test_modules_of_an_editable_installation_are_warned_of_also_in_paths_with_blanks(
    cluster: Cluster, tmp_path: Path
) -> None:
    code, venv = tmp_path / "my code", tmp_path / "venv"
    (code / "src" / "pkg").mkdir(parents=True)
    (code / "src" / "pkg" / "__init__.py").touch()
    (code / "train.py").write_text("import pkg; print(pkg.__file__)")
    made = [str(cluster.python), "-m", "venv", "--without-pip", "--system-site-packages", str(venv)]
    subprocess.run(made, check=True, timeout=60)
    (next(venv.glob("lib/python3*/site-packages")) / "editable.pth").write_text(f"{code}/src\n")
    defaults = {"python": str(venv / "bin" / "python"), "workdir": str(tmp_path / "my runs")}
    cluster.inventory(code, defaults=defaults)
    done = Orch(code, env=cluster.env, checks_jobs=True)("submit", "-j", "2x1", "--follow", "--", "train.py")
    assert f"[n1:1] {code}/src/pkg/__init__.py" in done.stdout
    (warning,) = [line for line in done.stdout.splitlines() if "pip install -e" in line]
    assert f"warning: n[0-1]: the ranks import modules from {code}/src" in warning
