"""
events.jsonl of a node folder: kinds and keys of events, the writer, the reader, and the state that the events result in.

It is written by the agent, by its guard, and after an attempt by the batch script of a Slurm job.
"""

from __future__ import annotations

import errno
import os
import time

from orchestrator.node.system.fast_stdlib import dumps, loads
from orchestrator.node.system.files import open_for_write, tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Dict, Final, List, Literal, Optional, TypedDict

    from typing_extensions import Unpack

    StateName = Literal["DONE", "FAILED", "STOPPED", "REQUEUE"]

    class RankResult(TypedDict, total=False):
        """
        The exit of a rank: its code or the name of a signal, and the message and kind in its error file, if any.

        `rank` is None for a program that runs once per node and starts the node's ranks itself. `missing` is the path of a
        FileNotFoundError that this node does not have. `lost_peer` is True if the rank has failed because another one ended,
        `exception` the error with which its standard error ends, if it is another one.
        """

        rank: Optional[int]
        code: Optional[int]
        signal: Optional[str]
        error: Optional[str]
        kind: Optional[str]
        missing: str
        lost_peer: bool
        exception: str
        time: float

    class Keys(RankResult, total=False):
        """The keys of all kinds of events but `event` and `text`."""

        pid: int
        start_time: Optional[int]
        done: bool
        state: StateName
        exit: Optional[RankResult]
        no_retry: bool
        oom_kills: Optional[int]  # processes of the run on this node that the kernel has killed for lack of memory
        signalled_s: Optional[float]  # when the agent received the first SIGTERM or SIGINT; None if it received none
        reported_done: bool  # every rank of the node had reported that its work was done, before or after such a signal
        refused: bool  # by the check of the nodes, before the first attempt
        reason: str
        saving_ranks: List[Optional[int]]  # the ranks that were asked to save and end
        lost: str  # the failure of a rank that the program of the node has started by hand
        left: Dict[str, int]  # folders of the program's own files in its working folder, with their bytes
        dropped: List[str]

    class Event(Keys, total=False):
        """A line of events.jsonl; `time` is in seconds since the epoch by the node's clock."""

        event: str
        text: str


EVENTS, OFFSETS = "events.jsonl", "offsets.jsonl"
EVENTS_LIMIT_BYTES = 16 << 20
CLOCK_READINGS = 5  # the quickest is used: a process may be descheduled between two readings
NO_RETRY = 93  # exit code of a rank: a retry cannot help (the convention of nvidia-resiliency-ext)
REQUEUE = 99  # exit code of a rank: it has saved, and requests another attempt
REFUSED = 4  # exit code of an agent: it could not start its ranks or write its record
REFUSAL = "orch agent: "  # precedes the reason on its standard error
PORT_TAKEN = errno.EADDRINUSE  # exit code of an agent: another program listens on the rendezvous port


class Kind:
    """The values of an event's key `event`."""

    AGENT_STARTED = "agent-started"
    AGENT_FINISHED = "agent-finished"  # written when no descendant of the agent is alive
    RANK_STARTED = "rank-started"
    RANK_EXITED = "rank-exited"
    STOPPING = "stopping"  # the agent begins to end its ranks
    WARNED = "warned"  # Slurm has announced the end of the job
    MESSAGE = "note"  # text alone
    RESTARTING = "restarting"  # over SSH, or in the same allocation
    REQUEUED = "requeued"


class State:
    """The values of the key `state` of agent-finished."""

    DONE: Final = "DONE"
    FAILED: Final = "FAILED"
    STOPPED: Final = "STOPPED"
    REQUEUE: Final = "REQUEUE"


class Clock:
    """Seconds since the epoch, by the monotonic clock and one reading of the wall clock: setting that later shifts no record."""

    def __init__(self) -> None:
        readings = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(CLOCK_READINGS)]
        before, now, after = min(readings, key=lambda reading: reading[2] - reading[0])
        self.ahead_s = now - (before + after) / 2

    def now(self) -> float:
        return self.ahead_s + time.monotonic()


class Journal:
    """JSON lines, each appended whole. A line that the full disk refuses is kept for the next flush; the job continues."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self.clock = clock
        self.pending: list[bytes] = []
        self._descriptor = open_for_write(path, os.O_APPEND)

    def add(self, **fields: object) -> None:
        self.pending.append(dumps({"time": self.clock.now(), **fields}).encode() + b"\n")
        self.flush()

    def flush(self) -> OSError | None:
        """Write the pending lines; return the error that prevents it."""
        while self.pending:
            size, rest = os.fstat(self._descriptor).st_size, self.pending[0]
            try:
                while rest:  # if the disk is full within the line, the next write fails
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if len(rest) < len(self.pending[0]):
                    os.ftruncate(self._descriptor, size)
                return OSError(error.errno, error.strerror, self.path)
            del self.pending[0]
        return None

    def require_written(self) -> None:
        error = self.flush()
        if error is not None:
            raise error


class EventLog(Journal):
    """The writer of events.jsonl in a node folder."""

    def __init__(self, folder: str, clock: Clock) -> None:
        super().__init__(os.path.join(folder, EVENTS), clock)

    def write(self, event: str, text: str, /, **keys: Unpack[Keys]) -> None:
        """Append an event; `text` is for the user."""
        self.add(event=event, **keys, text=text)

    def write_message(self, text: str) -> None:
        self.write(Kind.MESSAGE, text)

    def write_failure(self, text: str) -> None:
        """Append the last event of an agent that failed for a reason other than a rank's exit."""
        self.write(Kind.AGENT_FINISHED, text, state=State.FAILED, exit=None)


def read_events(folder: str) -> List[Event]:
    """The complete lines of events.jsonl that are objects, in the last EVENTS_LIMIT_BYTES."""
    events: List[Event] = []
    for line in tail(os.path.join(folder, EVENTS), EVENTS_LIMIT_BYTES).splitlines():
        try:
            event = loads(line)
        except ValueError:
            continue  # the last line may be incomplete, the first one cut
        if isinstance(event, dict):
            events.append(event)  # type: ignore[arg-type]  # the file may hold any object
    return events


class NodeHistory:
    """
    The state of one node folder, computed from its events.

    The events of a later agent (on another rendezvous port) replace an earlier agent's, except `rank_starts` and the warning.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.rank_starts: List[Event] = []
        self.warned_s: Optional[float] = None
        self.has_started = False
        self._reset()
        for event in events:
            self._add(event)

    def _reset(self) -> None:
        self.finished: Optional[Event] = None  # the agent's last event
        self.first_failure: Optional[Event] = None  # the exit of the first rank that failed
        self.done: List[Optional[int]] = []  # ranks that were done before the agent began to end its ranks
        self.ranks: Dict[Optional[int], str] = {}  # rank (None: the program of the node) -> running or exited
        self.stops_s: List[float] = []  # when the agent began to end its ranks
        self.saving_ranks: Optional[List[Optional[int]]] = None  # ranks; None without such a request
        self.requeues_s: List[float] = []  # when ranks exited with REQUEUE
        self.no_retry = False  # a rank reported that a retry cannot help

    def _add(self, event: Event) -> None:
        kind = event.get("event")
        if kind == Kind.AGENT_STARTED:
            self._reset()
            self.has_started = True
        elif kind == Kind.AGENT_FINISHED:
            self.finished = event
            self.no_retry |= bool(event.get("no_retry"))
        elif kind == Kind.RANK_STARTED:
            self.rank_starts.append(event)
            self.ranks[event["rank"]] = "running"
        elif kind == Kind.RANK_EXITED:
            self._add_exit(event)
        elif kind == Kind.STOPPING:
            self.stops_s.append(event["time"])
            self.saving_ranks = event.get("saving_ranks", self.saving_ranks)
        elif kind == Kind.WARNED:
            self.warned_s = event["time"]

    def _add_exit(self, event: Event) -> None:
        self.ranks[event["rank"]] = "exited"
        code = event.get("code")
        if event.get("done"):
            self.done += [] if self.stops_s else [event["rank"]]
            return
        if code != 0 and (self.first_failure is None or precedes(event, self.first_failure)):
            self.first_failure = event
        self.no_retry |= code == NO_RETRY
        if code == REQUEUE:
            self.requeues_s.append(event["time"])


def read_history(folder: str) -> NodeHistory:
    return NodeHistory(read_events(folder))


def precedes(later: RankResult, first: RankResult) -> bool:
    """True if the rank that ended later failed first: the other one only lost its connection to a rank, this one reports an error."""
    return bool(first.get("lost_peer") and later.get("exception"))


def cause_s(finished: Event) -> float:
    """
    The time of the cause of an agent's end: the exit of the first failed rank, else the end itself.

    If several agents failed, the one with the earliest cause is the cause of the others.
    """
    return (finished.get("exit") or finished).get("time", finished["time"])
