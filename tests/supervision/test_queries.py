"""Queries of commands to the owner of a run, over files."""

from __future__ import annotations

import errno
import json
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.endpoint.observation import AgentRecord, Finished, NodeObservation, ReportedExit
from orchestrator.errors import NodesError, Unreachable
from orchestrator.records.run_folder import RunFolder
from orchestrator.supervision import queries
from orchestrator.supervision.queries import (
    OBSERVE,
    STOP,
    Answer,
    Queries,
    Stopped,
    make_folder,
    observations_json,
    observe_by_owner,
    stop_by_owner,
)

EXIT = ReportedExit(3, None, "SIGKILL", "out of memory", kind="oom")
AGENT = AgentRecord(7, 1, 7, "boot", "host", "n0", "3.11", "n0", 0, (0, 3), 4, "10.0.0.1 29500 host", 12.5, "10.0.0.1")
NODE = NodeObservation(
    "n0",
    AGENT,
    alive=True,
    same_boot=True,
    finished=Finished("FAILED", 13.5, EXIT, "rank 3"),
    first_failure=EXIT,
    ranks={0: "running", 3: "killed by SIGKILL"},
    progress={0: {"step": 5}},
    stacks={0: "train.py:5"},
    cards={"time": 1.0, "cards": []},  # type: ignore[arg-type]  # as a newer node may report
)


def test_observation_as_json_is_read_as_the_same_observation() -> None:
    unstarted = NodeObservation("n1", None, alive=False, same_boot=False, finished=None, first_failure=None)
    for node in (NODE, unstarted):
        assert NodeObservation.from_json(json.loads(json.dumps(asdict(node)))) == node


@contextmanager
def _owner(folder: RunFolder, answers: Mapping[str, Answer]) -> Iterator[None]:
    with folder.supervision():
        make_folder(folder)
        with Queries(folder, answers).answered():
            yield


def test_owner_answers_several_commands_at_once_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "TAKEN_S", 60.0)
    folder, is_observed = RunFolder(tmp_path), threading.Event()
    failure = Unreachable("n1", "no answer for 7 s", at="h1 port 22", hint="ssh h1")

    def stop() -> dict[str, list[str]]:
        assert is_observed.wait(60)
        return {"left": ["n1: still running: 7"], "silent": ["n2"]}

    stopped: list[object] = []
    with _owner(folder, {OBSERVE: lambda: observations_json((NODE,), NodesError([failure], 2)), STOP: stop}):
        stopping = threading.Thread(target=lambda: stopped.append(stop_by_owner(folder)))
        stopping.start()
        observed = observe_by_owner(folder)
        is_observed.set()
        stopping.join()
        assert list(folder.queries.iterdir()) == []
    assert observed is not None
    nodes, missing = observed
    assert nodes == (NODE,)
    assert str(missing) == "n1: h1 port 22: no answer for 7 s (1 of 2)"
    assert stopped == [Stopped(["n1: still running: 7"], ["n2"])]
    assert observe_by_owner(folder) is None


def test_command_gets_no_answer_where_a_login_of_its_own_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is dead, of an earlier version, or stuck; it declines, or fails; the folder's disk is full."""
    monkeypatch.setattr(queries, "TAKEN_S", 0.1)
    monkeypatch.setattr(traceback, "print_exc", lambda: None)
    folder = RunFolder(tmp_path)
    assert observe_by_owner(folder) is None
    with folder.supervision():
        assert observe_by_owner(folder) is None
        folder.queries.mkdir()
        assert observe_by_owner(folder) is None
        assert list(folder.queries.iterdir()) == []

    def fail() -> None:
        raise ZeroDivisionError

    with _owner(folder, {OBSERVE: lambda: None, STOP: fail}):
        monkeypatch.setattr(queries, "TAKEN_S", 60.0)
        assert observe_by_owner(folder) is None
        assert stop_by_owner(folder) is None
    with _owner(folder, {OBSERVE: lambda: {"nodes": [{"node": "n0"}], "failures": []}}):
        assert observe_by_owner(folder) is None


@pytest.mark.parametrize("lack", ["disk", "threads"])
def test_command_does_not_wait_for_a_query_that_the_owner_cannot_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    monkeypatch.setattr(queries, "OBSERVED_S", 60.0)
    monkeypatch.setattr(queries, "TAKEN_S", 60.0)
    folder, start = RunFolder(tmp_path), threading.Thread.start

    def refuse_write(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse_thread(thread: threading.Thread) -> None:
        if thread.name == "query":
            raise RuntimeError("can't start new thread")
        start(thread)

    if lack == "disk":
        monkeypatch.setattr(queries, "write_file", refuse_write)
    else:
        monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    begin_s = time.monotonic()
    with _owner(folder, {OBSERVE: lambda: observations_json((NODE,), None)}):
        assert observe_by_owner(folder) is None
        assert list(folder.queries.iterdir()) == []
    assert time.monotonic() - begin_s < queries.OBSERVED_S


def test_owner_takes_queries_after_an_error_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, rename, errors = RunFolder(tmp_path), Path.rename, [errno.EIO, errno.ESTALE]

    def rename_after_errors(path: Path, target: Path) -> Path:
        if path.parent == folder.queries and errors:
            raise OSError(errors.pop(), "failed")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_after_errors)
    monkeypatch.setattr(queries, "TAKEN_S", 60.0)
    with _owner(folder, {OBSERVE: lambda: observations_json((NODE,), None)}):
        assert observe_by_owner(folder) == ((NODE,), None)


def test_folder_of_queries_is_the_users_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with _owner(folder, {}):
        assert folder.queries.stat().st_mode & 0o777 == 0o700
