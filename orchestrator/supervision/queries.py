"""
Queries of other commands to the owner of a run, over files in the run's folder: its open connections answer instead of new logins.

A command writes `queries/TOKEN.observe`, `.stop` or `.lines`; the owner renames that file to `TOKEN.taken`, answers in `TOKEN.json`,
and removes `TOKEN.taken` even if it cannot answer. Nothing listens, only the user can write there, and a query has no
content: the owner acts on the recorded run alone. If it is on another machine, of another version, stopped (SIGSTOP), ending
or dead, or its disk is full, there is no answer, and the command logs in itself.
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

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError, Unreachable
from orchestrator.logs.lines import LogLines
from orchestrator.records.files import write_file
from orchestrator.records.run_folder import RunFolder
from orchestrator.verdict.observe import stopped_pid

OBSERVE, STOP, LINES = "observe", "stop", "lines"
TAKEN, ANSWER = ".taken", ".json"
POLL_S = 0.1  # of the owner
ANSWER_POLL_S = 0.02
TAKEN_S = 20.0  # in which an owner that is not stuck takes a query, also on a machine that 150 processes share: logins take longer then
OBSERVED_S = 30.0  # until an answer; nodes that are slow are left out before
STOPPED_S = 60.0  # until an answer; a stop may take 50 s
MOST_LINES = 1000
"""The last lines of a log that the owner reads."""

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
                with contextlib.suppress(OSError):  # withdrawn, or the file system fails
                    self._begin(query)

    def _begin(self, query: Path) -> None:
        """Take a query, and answer it in another thread."""
        taken = query.rename(query.with_suffix(TAKEN))
        thread = threading.Thread(target=self._answer, args=(taken, query.suffix[1:]), name="query", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the user may have no more threads
            taken.unlink()
        else:
            self._threads.append(thread)

    def _answer(self, taken: Path, kind: str) -> None:
        try:
            answer = self._answers[kind]()
        except Exception:  # noqa: BLE001  a defect here must not end the supervision
            traceback.print_exc()  # in supervisor.log
            answer = None
        with contextlib.suppress(OSError):
            write_file(taken.with_suffix(ANSWER), json.dumps(answer), sync=False)
        with contextlib.suppress(OSError):
            taken.unlink()


def _query(folder: RunFolder, kind: str, wait_s: float) -> Json | None:
    """The owner's answer; None if there is none."""
    token = f"{os.getpid()}-{secrets.token_hex(8)}"
    query = folder.queries / f"{token}.{kind}"
    taken, answer = query.with_suffix(TAKEN), query.with_suffix(ANSWER)
    try:
        if not _may_answer(folder):
            return None
        query.touch(mode=0o600, exist_ok=False)
        taken_deadline, deadline = time.monotonic() + TAKEN_S, time.monotonic() + wait_s
        while not answer.exists():
            is_late = time.monotonic() > deadline or (time.monotonic() > taken_deadline and query.exists())
            # in the order in which the owner renames, answers and removes; also if another owner has emptied the folder
            is_given_up = not query.exists() and not taken.exists() and not answer.exists()
            if is_late or is_given_up or (not _may_answer(folder) and not answer.exists()):
                return None
            time.sleep(ANSWER_POLL_S)
        data: Json | None = json.loads(answer.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    else:
        return data
    finally:
        for file in (query, taken, answer):
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


def lines_by_owner(folder: RunFolder) -> list[LogLines]:
    """The last MOST_LINES lines of the newest attempt, which the owner reads; none if it does not answer."""
    answer = _query(folder, LINES, OBSERVED_S)
    try:
        return [] if answer is None else [LogLines(**group) for group in answer["lines"]]
    except (KeyError, TypeError):  # an owner of another version
        return []


def observations_json(nodes: tuple[NodeObservation, ...], missing: NodesError | None) -> Json:
    """The answer to a query for observations."""
    failures = [
        {"node": failure.node, "reason": failure.reason, "at": failure.at, "hint": failure.hint}
        for failure in (missing.failures if missing else ())
    ]
    return {"nodes": [asdict(node) for node in nodes], "failures": failures}
