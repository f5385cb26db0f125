"""The agent's files: its records as whole JSON files, its events as JSON lines that a full disk only delays."""

from __future__ import annotations

import errno
import json
import os
import time

from orchestrator.node.files import open_for_write, tail

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; importing typing costs every agent some milliseconds
if TYPE_CHECKING:
    from typing import Any, Dict, List

    Json = Dict[str, Any]
    from typing import Any


LOOKS = 5  # at two clocks, of which the quickest counts: a process may lose the processor in between


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


EVENTS_LIMIT_BYTES = 16 << 20


def read_events(folder: str) -> List[Json]:
    """The whole lines of events.jsonl that are objects; the end of it if it is huge."""
    events = []
    for line in tail(os.path.join(folder, "events.jsonl"), EVENTS_LIMIT_BYTES).splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line may be half written, the first half cut off
        if isinstance(event, dict):
            events.append(event)
    return events


NO_RETRY = 93  # a rank that exits so says that a retry cannot help


REQUEUE = 99  # a rank that exits so has saved, and asks to be started again


def agent_failed(text: str) -> dict[str, Any]:
    """The last event when no rank is to blame."""
    return {"event": "agent-finished", "state": "FAILED", "exit": None, "text": text}
