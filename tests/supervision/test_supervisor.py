"""The supervisor's process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.store import RunFolder
from orchestrator.supervision.start import start_and_wait


@pytest.mark.processes
def test_second_supervisor_of_a_run_ends_with_4_and_names_the_first(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "orchestrator.supervision.supervisor", str(tmp_path)]
    with RunFolder(tmp_path).supervision() as is_ours:
        assert is_ours
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 4
    assert "has a supervisor: pid" in done.stderr


@pytest.mark.processes
def test_supervisor_that_cannot_read_the_plan_records_why_it_has_ended(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "orchestrator.supervision.supervisor", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    *_, last = map(json.loads, (tmp_path / "events.jsonl").read_text("utf-8").splitlines())
    assert last["event"] == "supervisor-failed"
    assert last["text"].startswith("RunNotFound: ")
    assert last["text"].endswith("; the supervisor has ended, see supervisor.log")


@pytest.mark.processes
def test_end_of_a_supervisor_is_reported_even_if_no_thread_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert "it ended with status 1, see " in start_and_wait(RunFolder(tmp_path))
