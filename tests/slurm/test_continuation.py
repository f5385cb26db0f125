"""A job whose time limit ends before its work: it saves, Slurm requeues it, and the same run continues."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.until import until

PROGRAM = """
import json, os, pathlib, signal, sys
rank, attempt = os.environ["RANK"], int(os.environ["ORCH_ATTEMPT"])
folder = pathlib.Path(os.environ["ORCH_RUN_DIR"], f"attempt-{attempt}", os.environ["ORCH_NODE"], "progress")
def save(step):
    (folder / f"{rank}.json").write_text(json.dumps({"step": step, "phase": "step", "time": 0}))
def exit_99(number, frame):
    print("received", signal.Signals(number).name, flush=True)
    sys.exit(99)
def waits(*numbers):
    for number in numbers:
        signal.signal(number, exit_99)
    print("rank", rank, "in attempt", attempt, flush=True)
    while True:
        signal.pause()
"""
Start = Callable[..., tuple[str, str]]


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Orch:
    cluster.inventory(tmp_path)
    return Orch(tmp_path, env=cluster.env)


@pytest.fixture
def start(orch: Orch, cluster: Cluster) -> Start:
    """Submits two ranks of PROGRAM with further lines; returns the run and its job once `awaited` was printed twice."""

    def start(lines: str, awaited: str = "", *, env: dict[str, str] | None = None, **slurm: object) -> tuple[str, str]:
        (orch.cwd / "program.py").write_text(PROGRAM + lines, "utf-8")
        cluster.inventory(orch.cwd, slurm=slurm)
        submitting = Orch(orch.cwd, env={**orch.env, **(env or {})})
        run = submitting("submit", "--detach", "-j", "2x1", "--", "program.py").stdout.strip()
        until(lambda: not awaited or orch.printed(run).count(awaited) == 2, awaited=awaited)
        return run, orch.slurm_job(run)

    return start


def _log(orch: Orch, run: str) -> str:
    return orch("logs", run).stdout


@pytest.mark.extended
def test_run_that_waits_for_its_next_attempt_is_pending(start: Start, orch: Orch, cluster: Cluster) -> None:
    run, job = start("waits(signal.SIGUSR2)", "in attempt 1")
    cluster.signal(job, "USR2")
    until(lambda: cluster.jobs().get(job) == "PENDING", awaited="the job to be requeued")
    assert orch.status(run)["state"] == "PENDING"
    assert "received SIGUSR2" in _log(orch, run)
    orch("stop", run)
    assert orch.status(run)["state"] == "STOPPED"


@pytest.mark.extended
def test_program_that_ignores_the_warning_continues(start: Start, orch: Orch, cluster: Cluster) -> None:
    run, job = start("while not os.path.exists('../enough'): print('here', flush=True); signal.sigtimedwait((), 0.2)")
    until(lambda: "here" in orch.printed(run), awaited="the ranks")
    cluster.signal(job, "USR2")
    until(lambda: orch.printed(run).count("Slurm will end the job") == 2, awaited="the warning")
    (orch.node_folder(run, "n0").parents[1] / "enough").touch()  # beside the code folder, in which the ranks run
    assert cluster.wait_for(orch, run, "DONE")["attempt"] == 1


@pytest.mark.extended
def test_job_is_requeued_though_nodes_have_no_scontrol(
    start: Start, orch: Orch, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "srun", "squeue"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin" / name).symlink_to(found)
    lines = "if attempt == 1: waits(signal.SIGUSR2)"
    run, job = start(lines, "in attempt 1", env={"PATH": str(tmp_path / "bin")})
    cluster.signal(job, "USR2")
    cluster.start_soon(job)
    assert cluster.wait_for(orch, run, "DONE")["attempt"] == 2


def test_cancelled_job_is_not_requeued_though_its_ranks_exit_with_99(
    start: Start, orch: Orch, cluster: Cluster
) -> None:
    run, job = start("waits(signal.SIGUSR2, signal.SIGTERM)", "in attempt 1")
    orch("stop", run)
    assert orch.status(run)["state"] == "STOPPED"
    assert "received SIG" in _log(orch, run)
    assert job not in cluster.jobs()


@pytest.mark.extended
@pytest.mark.slow
def test_job_is_not_requeued_after_three_attempts_without_progress(start: Start, orch: Orch, cluster: Cluster) -> None:
    run, job = start("save(7); sys.exit(99)")
    for attempt in (2, 3, 4):
        until(lambda: f"for attempt {attempt}" in orch.printed(run), awaited="the next attempt")
        cluster.start_soon(job)
    status = cluster.wait_for(orch, run, "FAILED")
    assert status["attempt"] == 4  # the first one made progress
    assert "3 attempts in a row made no progress" in status["message"]
    assert "the newest saved step is 7" in status["message"]


def test_retries_are_bounded_though_each_makes_progress(start: Start, orch: Orch, cluster: Cluster) -> None:
    run, job = start("save(attempt); sys.exit(99)", max_retries=1)
    cluster.start_soon(job)
    status = cluster.wait_for(orch, run, "FAILED")
    assert status["attempt"] == 2
    assert "attempt 2 was the last: max_retries is 1" in status["message"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("lines", "slurm", "message"),
    [
        ("sys.exit(99)", {"requeue": "never"}, "slurm.requeue is never"),
        ("sys.exit(93)", {}, "exited 93"),
        ("save(3); sys.exit(7)", {"max_retries": 0}, "exited 7"),
        ("sys.exit(7)", {}, "exited 7"),
    ],
)
def test_job_is_not_requeued_after_a_final_failure(
    start: Start, orch: Orch, cluster: Cluster, *, lines: str, slurm: dict[str, object], message: str
) -> None:
    run, job = start(lines, **slurm)
    status = cluster.wait_for(orch, run, "FAILED")
    assert status["attempt"] == 1
    assert message in status["message"]
    assert job not in cluster.jobs()


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_job_that_ignored_the_warning_is_requeued_at_the_time_limit_after_progress(
    start: Start, orch: Orch, cluster: Cluster
) -> None:
    """Slurm checks limits twice a minute: the first check is for the warning, the second for the end."""
    run, job = start("save(5 * attempt)\nif attempt == 1: waits()", "in attempt 1", time="00:10:00", warn_s=5)
    subprocess.run(["scontrol", "update", f"JobId={job}", "EndTime=now+31"], env=cluster.env, check=True)
    until(lambda: "Slurm will end the job" in orch.printed(run), awaited="the warning", deadline_s=100)
    until(lambda: cluster.jobs().get(job) == "PENDING", awaited="the job to be requeued", deadline_s=150)
    cluster.start_soon(job)
    assert cluster.wait_for(orch, run, "DONE")["attempt"] == 2


def test_run_that_is_being_preempted_is_requeued_and_not_restarted_in_the_nodes_that_are_taken(
    start: Start, orch: Orch, cluster: Cluster
) -> None:
    """The partition has a GraceTime, in which the job runs on: SIGTERM comes at its start."""
    lines = (
        "save(attempt)\nif attempt == 2: sys.exit(0)\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\nwaits()"
    )
    run, job = start(lines, "in attempt 1")
    cluster.preempt(*(node["node"] for node in orch.status(run)["nodes"]))
    cluster.start_soon(job)
    assert cluster.wait_for(orch, run, "DONE")["attempt"] == 2
    log = _log(orch, run)
    assert "the job is requeued, for attempt 2" in log
    assert "restarts in the same allocation" not in log
