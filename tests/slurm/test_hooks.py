"""Hooks of a job of Slurm: a process beside it, on the machine that has submitted it, reports each state and condition once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.records.run_folder import RunFolder
from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.until import until

DEADLINE_S = 90.0  # the process looks every ten seconds
PROGRAM = """
import os, sys, time
from pathlib import Path
from orch_progress import report
gates, attempt, step = Path(sys.argv[1]), os.environ["ORCH_ATTEMPT"], 0
while not (gates / f"end-{attempt}").exists():
    step += 1
    is_bad = (gates / "bad").exists() and not (gates / "good").exists()
    report(step, saved=step, loss=float("nan") if is_bad else 1.0)
    time.sleep(0.1)
sys.exit(1 if attempt == "1" else 0)
"""
SCRIPT = 'echo "$ORCH_STATE $ORCH_ATTEMPT $ORCH_CONDITION $ORCH_MESSAGE" >>"$1"'


@pytest.fixture
def gates(tmp_path: Path) -> Path:
    folder = tmp_path / "gates"
    folder.mkdir()
    return folder


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Iterator[Orch]:
    """orch beside an inventory with a hook that appends to the file `shown`."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "train.py").write_text(PROGRAM)
    command = ["sh", "-c", SCRIPT, "hook", str(tmp_path / "shown")]
    events = ["RESTARTED", "DONE", "FAILED", "STOPPED", "NOT_FINITE", "SLOW", "NO_PROGRESS"]
    cluster.inventory(home, hooks=[{"on": events, "command": command}])
    (tmp_path / "shown").touch()
    orch = Orch(home, env=cluster.env)
    yield orch
    for folder in (orch.home / "runs").iterdir():
        if reporter := RunFolder(folder).reporter():
            assert reporter.pid is not None
            os.kill(reporter.pid, signal.SIGKILL)


def _shown(tmp_path: Path) -> list[str]:
    return (tmp_path / "shown").read_text().splitlines()


def _wait_for(tmp_path: Path, count: int) -> str:
    until(
        lambda: len(_shown(tmp_path)) >= count,
        deadline_s=DEADLINE_S,
        awaited=lambda: f"notification {count} after {_shown(tmp_path)}",
    )
    return _shown(tmp_path)[count - 1]


@pytest.mark.slow
def test_condition_is_reported_once_when_it_begins_and_when_it_is_over_and_a_restart_and_the_end(
    orch: Orch, tmp_path: Path, gates: Path
) -> None:
    run = orch("submit", "-j", "1x1", "--max-retries", "1", "--detach", "--", "train.py", str(gates)).stdout.strip()
    assert "hooks" not in orch("status", run).stderr, "a process runs them"
    (gates / "bad").touch()
    assert _wait_for(tmp_path, 1).startswith(f"RUNNING 1 NOT_FINITE run {run}: the loss is not finite: rank 0, step ")
    (gates / "good").touch()
    assert _wait_for(tmp_path, 2) == f"RUNNING 1 NOT_FINITE run {run}: no longer: the loss is not finite"
    (gates / "end-1").touch()
    assert _wait_for(tmp_path, 3).split()[1] == "2", "another attempt"
    (gates / "end-2").touch()
    assert _wait_for(tmp_path, 4) == f"DONE 2  run {run} is DONE, attempt 2"
    until(lambda: RunFolder(orch.home / "runs" / run).reporter() is None, awaited="the end of the process")
    assert len(_shown(tmp_path)) == 4
    assert (orch.home / "runs" / run / "supervisor.log").read_text() == ""


@pytest.mark.slow
def test_attach_starts_another_process_which_reports_nothing_twice(orch: Orch, tmp_path: Path, gates: Path) -> None:
    (gates / "bad").touch()
    run = orch("submit", "-j", "1x1", "--detach", "--", "train.py", str(gates)).stdout.strip()
    assert _wait_for(tmp_path, 1).startswith("RUNNING 1 NOT_FINITE")
    folder = RunFolder(orch.home / "runs" / run)
    reporter = folder.reporter()
    assert reporter is not None
    assert reporter.pid is not None
    os.kill(reporter.pid, signal.SIGKILL)
    until(lambda: folder.reporter() is None, awaited="the end of the process")
    assert (
        f"no process runs the hooks of this run; `orch attach {run} --detach` starts one" in orch("status", run).stderr
    )
    orch("attach", run, "--detach")
    assert folder.reporter() is not None
    orch("attach", run, "--detach")
    orch("stop", run)
    assert _wait_for(tmp_path, 2).startswith("STOPPED 1")
    until(lambda: folder.reporter() is None, awaited="the end of the process")
    assert len(_shown(tmp_path)) == 2
    assert sum(event["event"] == "reporter-started" for event in folder.events()) == 2
