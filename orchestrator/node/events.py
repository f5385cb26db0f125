"""
events.jsonl of a node folder: the kinds and keys of its events, their writer, their reader, and the state they add up to.

The agent writes it, its guard, and after an attempt the batch script of a Slurm job.
"""

from __future__ import annotations

import errno
import json
import os
import time

from orchestrator.node.files import open_for_write, tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Dict, List, Optional, TypedDict

    from typing_extensions import Unpack

    class RankResult(TypedDict, total=False):
        """How a rank ended: its code or the name of a signal; message and kind of its error, if it left them."""

        rank: int
        code: Optional[int]
        signal: Optional[str]
        error: Optional[str]
        kind: Optional[str]
        time: float

    class Keys(RankResult, total=False):
        """The keys of all kinds of events but `event` and `text`."""

        pid: int
        start_time: Optional[int]
        done: bool
        state: str
        exit: Optional[RankResult]
        reason: str
        dropped: List[str]

    class Event(Keys, total=False):
        """A line of events.jsonl; `time` is in seconds since the epoch by the node's clock."""

        event: str
        text: str


EVENTS, OFFSETS = "events.jsonl", "offsets.jsonl"
EVENTS_LIMIT_BYTES = 16 << 20
CLOCK_READINGS = 5  # the quickest counts: a process may lose the processor between two readings
NO_RETRY = 93  # a rank that exits so reports that a retry cannot help (the convention of nvidia-resiliency-ext)
REQUEUE = 99  # a rank that exits so has saved, and asks for another attempt


class Kind:
    """The values of an event's key `event`."""

    AGENT_STARTED = "agent-started"
    AGENT_FINISHED = "agent-finished"  # written when nothing below the agent is alive
    RANK_STARTED = "rank-started"
    RANK_EXITED = "rank-exited"
    STOPPING = "stopping"  # the agent begins to end its ranks
    WARNED = "warned"  # by Slurm, which is about to end the job
    NOTE = "note"
    RESTARTING = "restarting"  # in the same allocation
    REQUEUED = "requeued"


class State:
    """The values of the key `state` of agent-finished."""

    DONE = "DONE"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    REQUEUE = "REQUEUE"


class Clock:
    """Seconds since the epoch, counted from one reading of the wall clock: setting that one later shifts no record."""

    def __init__(self) -> None:
        readings = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(CLOCK_READINGS)]
        before, now, after = min(readings, key=lambda reading: reading[2] - reading[0])
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
        """Write what waits; the error that prevents it."""
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
        error = self.flush()
        if error is not None:
            raise error


class EventLog(Journal):
    """Appends to events.jsonl of a node folder."""

    def __init__(self, folder: str, clock: Clock) -> None:
        super().__init__(os.path.join(folder, EVENTS), clock)

    def write(self, event: str, text: str, /, **keys: Unpack[Keys]) -> None:
        """Append an event; `text` is for a person."""
        self.add(event=event, **keys, text=text)

    def note(self, text: str) -> None:
        self.write(Kind.NOTE, text)

    def agent_failed(self, text: str) -> None:
        """Append the last event of an agent that failed for a reason other than a rank's exit."""
        self.write(Kind.AGENT_FINISHED, text, state=State.FAILED, exit=None)


def read_events(folder: str) -> List[Event]:
    """The whole lines of events.jsonl that are objects; only the end of a huge file."""
    events: List[Event] = []
    for line in tail(os.path.join(folder, EVENTS), EVENTS_LIMIT_BYTES).splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line may be half written, the first one cut
        if isinstance(event, dict):
            events.append(event)  # type: ignore[arg-type]  # any object may be in the file
    return events


class NodeHistory:
    """
    The state that the events of one node folder add up to.

    A later agent (on another rendezvous port) makes void what an earlier one left, but for `rank_starts` and the warning.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.rank_starts: List[Event] = []
        self.warned_s: Optional[float] = None
        self.has_started = False
        self._forget()
        for event in events:
            self._add(event)

    def _forget(self) -> None:
        self.finished: Optional[Event] = None  # the agent's last event
        self.first_failure: Optional[Event] = None  # the exit of the first rank that failed
        self.ranks: Dict[int, str] = {}  # rank -> running or exited
        self.stops_s: List[float] = []  # when the agent began to end its ranks
        self.requeues_s: List[float] = []  # when ranks exited that asked for another attempt
        self.no_retry = False  # a rank reported that a retry cannot help

    def _add(self, event: Event) -> None:
        kind = event.get("event")
        if kind == Kind.AGENT_STARTED:
            self._forget()
            self.has_started = True
        elif kind == Kind.AGENT_FINISHED:
            self.finished = event
        elif kind == Kind.RANK_STARTED:
            self.rank_starts.append(event)
            self.ranks[event["rank"]] = "running"
        elif kind == Kind.RANK_EXITED:
            self._add_exit(event)
        elif kind == Kind.STOPPING:
            self.stops_s.append(event["time"])
        elif kind == Kind.WARNED:
            self.warned_s = event["time"]

    def _add_exit(self, event: Event) -> None:
        self.ranks[event["rank"]] = "exited"
        code = event.get("code")
        if event.get("done"):
            return
        if code != 0 and self.first_failure is None:
            self.first_failure = event
        self.no_retry |= code == NO_RETRY
        if code == REQUEUE:
            self.requeues_s.append(event["time"])


def read_history(folder: str) -> NodeHistory:
    """The state of a node folder, by its events."""
    return NodeHistory(read_events(folder))


def cause_s(finished: Event) -> float:
    """
    When what ended this agent happened: the exit of its first failed rank, else its own end.

    Of several agents that failed, the one with the earliest cause is to blame.
    """
    return (finished.get("exit") or finished).get("time", finished["time"])
