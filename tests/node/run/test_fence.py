"""The fence between two attempts of a Slurm job: which agents of earlier attempts are waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.node.run import fence
from orchestrator.node.run.events import Clock, EventLog, Kind, State
from orchestrator.node.run.fence import FENCE, Fence, close_fences


def _agent(run: Path, attempt: int, node: str) -> tuple[Fence, EventLog]:
    """The fence and the events of an agent that has started."""
    folder = run / f"attempt-{attempt}" / node
    folder.mkdir(parents=True)
    events = EventLog(str(folder), Clock())
    events.write(Kind.AGENT_STARTED, "started", pid=1)
    return Fence(str(folder)), events


def _finish(events: EventLog) -> None:
    events.write(Kind.AGENT_FINISHED, "ended", state=State.FAILED, exit=None, no_retry=False)


def _replace_sleep(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act instead of sleeping, in the fence alone: threads of other tests may sleep at this moment."""
    monkeypatch.setattr(fence, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: act()))


def test_agents_that_have_ended_are_not_waited_for(tmp_path: Path) -> None:
    ended, events = _agent(tmp_path, 1, "n0")
    _finish(events)
    assert close_fences(str(tmp_path), 2) == []
    assert not ended.is_closed()


def test_agent_that_does_not_react_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "ANSWER_S", 0.1)
    fences = [_agent(tmp_path, attempt, "n0")[0] for attempt in (1, 2)]
    current, _ = _agent(tmp_path, 3, "n0")
    assert close_fences(str(tmp_path), 3) == []
    assert [each.is_closed() for each in fences] == [True, True]
    assert not current.is_closed()
    assert (tmp_path / "attempt-2/n0" / FENCE).read_text() == "attempt 3\n"


def test_agent_that_reacts_is_waited_for_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "ANSWER_S", 0.0)
    monkeypatch.setattr(fence, "END_S", 60.0)
    _, events = _agent(tmp_path, 1, "n0")
    stopping = threading.Event()

    def react() -> None:
        while not (tmp_path / "attempt-1/n0" / FENCE).read_text():
            pass
        events.write(Kind.STOPPING, "stopping", reason="r")
        stopping.set()
        _finish(events)

    thread = threading.Thread(target=react)
    _replace_sleep(monkeypatch, lambda: stopping.wait(10))
    thread.start()
    assert close_fences(str(tmp_path), 2) == []
    thread.join()


def test_ranks_that_do_not_end_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = _agent(tmp_path, 1, "n7")
    monkeypatch.setattr(fence, "END_S", 0.0)
    _replace_sleep(monkeypatch, lambda: events.write(Kind.STOPPING, "stopping", reason="r"))
    assert close_fences(str(tmp_path), 2) == ["n7"]


def test_fence_without_its_storage_is_open(tmp_path: Path) -> None:
    kept, _ = _agent(tmp_path, 1, "n0")
    (tmp_path / "attempt-1/n0" / FENCE).unlink()
    assert not kept.is_closed()
