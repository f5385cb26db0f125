"""The watch of the batch host by the other nodes of a Slurm job with spare nodes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.batch import head_watch
from orchestrator.node.batch.head_watch import HEARTBEAT, watch

JOB = {
    "version": 1, "run_id": "x", "attempt": 1, "bundle_dir": "/b", "nodes": None, "addresses": [], "ranks": [1, 1], "program": {"args": ["x"], "python": False, "pythonpath": None, "cwd": None},
    "grace_s": 10.0, "slurm": {"requeue": "auto", "max_retries": 100, "warn_s": 90, "spares": []},
}  # fmt: skip


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """job.json of a run on n0, whose batch script has made the heartbeat, and n1; this process is on n1."""
    path = tmp_path / "attempt-1" / "job.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**JOB, "run_dir": str(tmp_path)}), "utf-8")
    (tmp_path / HEARTBEAT).touch()
    for name, value in {"SLURMD_NODENAME": "n1", "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(head_watch, "POLL_S", 0.01)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield path
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests to Slurm, which grants them."""
    requests: list[str] = []
    monkeypatch.setattr(head_watch, "requeue", lambda _env: _granted(requests, "requeue"))
    monkeypatch.setattr(head_watch, "cancel", lambda _env: _granted(requests, "cancel"))
    return requests


def _granted(requests: list[str], request: str) -> str:
    requests.append(request)
    return ""


def _events(job: Path) -> list[dict[str, object]]:
    text = (job.parent / "n0" / "events.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_job_is_requeued_once_the_heartbeat_of_the_batch_host_ends(job: Path, requests: list[str]) -> None:
    assert watch(str(job), "n0") == 0
    assert requests == ["requeue"]
    [event] = _events(job)
    assert event["event"] == "requeued"
    assert event["text"] == "n0, the node of the batch script, is lost: the job is requeued, for attempt 2"
    assert not (job.parents[1] / HEARTBEAT).exists()  # so the other nodes request nothing


def test_job_that_may_not_restart_is_cancelled_and_has_failed_on_the_lost_node(job: Path, requests: list[str]) -> None:
    text = job.read_text("utf-8")
    job.write_text(text.replace('"auto"', '"never"'), "utf-8")
    watch(str(job), "n0")
    assert requests == ["cancel"]
    [event] = _events(job)
    assert (event["event"], event["state"]) == ("agent-finished", "FAILED")
    assert "slurm.requeue is never" in str(event["text"])


def test_job_whose_ranks_have_finished_is_cancelled_but_has_not_failed(job: Path, requests: list[str]) -> None:
    for node in ("n1", "n2"):
        (job.parent / node).mkdir()
        end = {"time": 1.0, "event": "agent-finished", "state": "DONE", "exit": None}
        (job.parent / node / "events.jsonl").write_text(json.dumps(end) + "\n", "utf-8")
    watch(str(job), "n0")
    assert requests == ["cancel"]
    assert [event["event"] for event in _events(job)] == ["note"]


def _report_state(folder: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sinfo report this state for every node."""
    sinfo = folder / "bin" / "sinfo"
    sinfo.parent.mkdir()
    sinfo.write_text(f"#!/bin/sh\necho '{state}'\n", "utf-8")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sinfo.parent}:{os.environ['PATH']}")


def test_job_whose_silent_batch_host_is_down_for_slurm_too_is_requeued_sooner(
    job: Path, requests: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _report_state(tmp_path, "down*", monkeypatch)
    monkeypatch.setattr(head_watch, "SILENT_POLLS", 10**9)
    watch(str(job), "n0")
    assert requests == ["requeue"]


@pytest.mark.parametrize(("state", "expected"), [("down*", ["requeue"]), ("allocated", [])])
def test_job_that_slurm_ends_is_requeued_only_if_its_batch_host_is_down(
    job: Path, requests: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, expected: list[str]
) -> None:
    _report_state(tmp_path, state, monkeypatch)
    monkeypatch.setattr(head_watch, "POLL_S", 60.0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # pending for this thread alone
    watch(str(job), "n0")
    assert requests == expected


def test_batch_host_renews_the_heartbeat_until_the_batch_script_ends(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    heartbeat = job.parents[1] / HEARTBEAT
    os.utime(heartbeat, (1, 1))

    def end_after_a_heartbeat(_signals: object, _wait_s: float) -> None:
        assert heartbeat.stat().st_mtime > time.time() - 60
        heartbeat.unlink()

    monkeypatch.setattr(signal, "sigtimedwait", end_after_a_heartbeat)
    assert watch(str(job), "n0") == 0
