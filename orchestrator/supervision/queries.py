"""
Queries of other commands to the owner of a run, over files in the run's folder: its open connections answer instead of new logins.

A command writes `queries/TOKEN.observe` or `.stop`; the owner removes that file and answers in `queries/TOKEN.json`. Nothing
listens, only the user can write there, and a query has no content: the owner acts on the recorded run alone. If it is on
another machine, of another version, stopped (SIGSTOP), ending or dead, there is no answer, and the command logs in itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.endpoint.replies import NodeObservation
from orchestrator.errors import NodesError, Unreachable
from orchestrator.store import RunFolder, write_file
from orchestrator.verdict.observe import stopped_pid

OBSERVE, STOP = "observe", "stop"
POLL_S = 0.1  # of the owner
ANSWER_POLL_S = 0.02
TAKEN_S = 5.0  # in which an owner that is not stuck takes a query
OBSERVED_S = 30.0  # until an answer; nodes that are slow are left out before
STOPPED_S = 60.0  # until an answer; a stop may take 50 s

Json: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[], "Json | None"]


def make_folder(folder: RunFolder) -> None:
    """Make the empty folder of queries, once per owner; without it, as on a full disk, commands log in."""
    shutil.rmtree(folder.queries, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.queries.mkdir(mode=0o700)


class Queries:
    """The owner's end: answers each query in another thread."""

    def __init__(self, folder: RunFolder, answers: Mapping[str, Answer]) -> None:
        self._path = folder.queries
        self._answers = answers
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    @contextlib.contextmanager
    def answered(self) -> Iterator[None]:
        """Answer queries until the context ends, and then those in progress."""
        taking = threading.Thread(target=self._take, name="queries", daemon=True)
        with contextlib.suppress(RuntimeError):  # the user may have no more threads
            taking.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in (taking, *self._threads):
                if thread.is_alive():
                    thread.join()

    def _take(self) -> None:
        while not self._stopping.wait(POLL_S):
            try:
                queries = [path for path in self._path.iterdir() if path.suffix[1:] in self._answers]
            except OSError:
                continue
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for query in queries:
                thread = threading.Thread(target=self._answer, args=(query,), name="query", daemon=True)
                with contextlib.suppress(FileNotFoundError, RuntimeError):  # withdrawn; no more threads
                    query.unlink()
                    thread.start()
                    self._threads.append(thread)

    def _answer(self, query: Path) -> None:
        try:
            answer = self._answers[query.suffix[1:]]()
        except Exception:  # noqa: BLE001  a defect here must not end the supervision
            traceback.print_exc()  # in supervisor.log
            answer = None
        with contextlib.suppress(OSError):
            write_file(query.with_suffix(".json"), json.dumps(answer), sync=False)


def _query(folder: RunFolder, kind: str, wait_s: float) -> Json | None:
    """The owner's answer; None if there is none."""
    token = f"{os.getpid()}-{secrets.token_hex(8)}"
    query, answer = folder.queries / f"{token}.{kind}", folder.queries / f"{token}.json"
    try:
        if not _may_answer(folder):
            return None
        query.touch(mode=0o600, exist_ok=False)
        taken_deadline, deadline = time.monotonic() + TAKEN_S, time.monotonic() + wait_s
        while not answer.exists():
            is_late = time.monotonic() > deadline or (time.monotonic() > taken_deadline and query.exists())
            if is_late or (not _may_answer(folder) and not answer.exists()):
                return None
            time.sleep(ANSWER_POLL_S)
        data: Json | None = json.loads(answer.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    else:
        return data
    finally:
        for file in (query, answer):
            with contextlib.suppress(OSError):
                file.unlink()


def _may_answer(folder: RunFolder) -> bool:
    """True if the owner runs on this machine, and no signal has stopped it."""
    owner = folder.supervisor()
    return owner is not None and owner.host == socket.gethostname() and stopped_pid(owner) is None


@dataclass(frozen=True, slots=True)
class Stopped:
    """A run that its owner has stopped: lines that name what is left, and nodes that have not answered for some time."""

    left: Sequence[str]
    silent: Sequence[str]


def stop_by_owner(folder: RunFolder) -> Stopped | None:
    """Let the owner stop the run on all nodes that answer it; None if it does not do that."""
    answer = _query(folder, STOP, STOPPED_S)
    try:
        return None if answer is None else Stopped(**answer)
    except TypeError:  # an owner of another version
        return None


def observe_by_owner(folder: RunFolder) -> tuple[tuple[NodeObservation, ...], NodesError | None] | None:
    """Let the owner query the nodes; return the observations and the failures. None if it does not answer."""
    answer = _query(folder, OBSERVE, OBSERVED_S)
    if answer is None:
        return None
    try:
        nodes = tuple(NodeObservation.from_json(node) for node in answer["nodes"])
        failures = [Unreachable(**failure) for failure in answer["failures"]]
    except (KeyError, TypeError):  # an owner of another version
        return None
    return nodes, NodesError(failures, len(nodes) + len(failures)) if failures else None


def observations_json(nodes: tuple[NodeObservation, ...], missing: NodesError | None) -> Json:
    """The answer to a query for observations."""
    failures = [
        {"node": failure.node, "reason": failure.reason, "at": failure.at, "hint": failure.hint}
        for failure in (missing.failures if missing else ())
    ]
    return {"nodes": [asdict(node) for node in nodes], "failures": failures}
