"""The agent's files: its records as whole JSON files, its events as JSON lines that a full disk only delays."""

from __future__ import annotations

import errno
import json
import os
import time

from orchestrator.node.stacks import has_left_stacks

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; importing typing costs every agent some milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


LOOKS = 5  # at two clocks, of which the quickest counts: a process may lose the processor in between


def open_for_write(path: str, flag: int) -> int:
    """Open a file of one's own: a link planted there is refused."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flag, 0o600)


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write a whole file or none: readers never see a part of it."""
    with open(open_for_write(path + ".tmp", os.O_TRUNC), "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(path + ".tmp", path)


def read_json(*path: str) -> dict[str, Any]:
    """The object in a file that others write; empty when the file is missing, torn or holds something else."""
    try:
        with open(os.path.join(*path), encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def error_of(*path: str) -> tuple[str | None, str | None]:
    """
    Message and kind in a TORCHELASTIC_ERROR_FILE: {"message": {"message": …, "extraInfo": …}} or {"message": …}.

    The kind (storage, memory, …) is the trainer's addition to extraInfo.
    """
    message, kind = read_json(*path).get("message"), None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        kind = extra.get("kind") if isinstance(extra, dict) else None
        message = message.get("message")
    return None if message is None else str(message), None if kind is None else str(kind)


def failure_of(folder: str, rank: int, signal: str | None) -> tuple[str | None, str | None]:
    """
    Message and kind of a rank's failure, by what it left in the node's folder; `signal` ended it, if any did.

    Where it had stood still for long, this is the kind of an end by NCCL's watchdog (SIGABRT), and of the loss of others.
    """
    error, kind = error_of(folder, "error", f"{rank}.json")
    waited = kind == "network" or (kind is None and signal == "SIGABRT")
    return error, "hang" if waited and has_left_stacks(folder, rank) else kind


class Clock:
    """Seconds since the epoch, counted on from one look at the wall clock: who sets that one later moves no record."""

    def __init__(self) -> None:
        looks = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(LOOKS)]
        before, now, after = min(looks, key=lambda look: look[2] - look[0])
        self.ahead_s = now - (before + after) / 2

    def now(self) -> float:
        return self.ahead_s + time.monotonic()


class Journal:
    """JSON lines, appended whole. A line that a full disk refuses waits for the next flush: the job goes on."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self.clock = clock
        self.waiting: list[bytes] = []
        self._descriptor = open_for_write(path, os.O_APPEND)

    def add(self, **fields: object) -> None:
        self.waiting.append(json.dumps({"time": self.clock.now(), **fields}).encode() + b"\n")
        self.flush()

    def flush(self) -> OSError | None:
        """None when every line is in the file, else why not."""
        while self.waiting:
            size = os.fstat(self._descriptor).st_size
            try:
                written = os.write(self._descriptor, self.waiting[0])
            except OSError as error:
                return OSError(error.errno, error.strerror, self.path)
            if written < len(self.waiting[0]):  # the disk is full within the line
                os.ftruncate(self._descriptor, size)
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            del self.waiting[0]
        return None

    def require_written(self) -> None:
        fault = self.flush()
        if fault is not None:
            raise fault
