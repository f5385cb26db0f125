"""Read the lines of a run from its node folders as they are written."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from orchestrator.backoff import backoff
from orchestrator.endpoint.logs import Chunk, Positions
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodeError
from orchestrator.fanout import failed_nodes, map_parallel
from orchestrator.launchers.base import AttemptFolder
from orchestrator.logs.lines import BAR_EVERY_S, MAX_LINE_BYTES, MAX_WRITE_TIMES, LogLines, NodeLines, in_order
from orchestrator.logs.selection import Selection
from orchestrator.node.run.events import OFFSETS, Kind

CHUNK_BYTES = 1 << 20
HELD_BYTES = 1 << 25  # the chunks held while merging, one of every file or feed; their text takes as much again
LEAST_CHUNK_BYTES = 1 << 12
POLL_S = 1.0
OBSERVATIONS_PER_S = 10  # of nodes: each opens a dozen files, perhaps on a shared file system
TIME_MARGIN_S = 1.0  # between the clocks of this machine and a node; lines that are too old are left out afterwards
LEAVE_S = 0.1
WAITING_BATCHES = 16
LAST_RETRY_S = 5.0


@dataclass(slots=True)
class Feed:
    """The reading position in one attempt folder: the offset in each file, and the unfinished lines."""

    folder: AttemptFolder
    selection: Selection = field(default_factory=Selection)
    """The output files to read; the agents' files are read in any case."""
    offsets: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, deque[tuple[int, int]]] = field(default_factory=dict)
    """Output file -> the parts that `history` leaves out, from the start of a line on."""
    nodes: dict[str, NodeLines] = field(default_factory=dict)
    failure: NodeError | None = None
    """Why its files could not be read to their ends."""
    bar_every_s: float = BAR_EVERY_S
    observe_every_s: float = math.inf
    """Between two observations of nodes from a machine on which their agents do not run, without a new event."""
    observes: bool = True
    """False while the run's supervisor observes its nodes: then `observe` returns none."""
    has_read: bool = False
    """True if the last read returned bytes, even if no line ended in them."""
    _followed_to: str | None = None
    """The position that the endpoint keeps; None if the next request must send the offsets."""
    _limits: tuple[int, int] = MAX_WRITE_TIMES, MAX_LINE_BYTES
    _observed_events: int = -1
    _next_observation_s: float = 0.0
    """By time.monotonic()."""

    def begin_at_last(self, lines: int) -> None:
        """Discard the position, and begin at the last `lines` lines of each output file."""
        folder = self.folder
        positions = folder.endpoint.last_lines(folder.attempt_dir, folder.nodes, self.selection.outputs, lines)
        self._begin_at(positions)

    def begin_at_time(self, earliest: float) -> None:
        """Discard the position, and begin at the lines written at `earliest`, in seconds since the epoch, or later."""
        folder, since_s = self.folder, max(0.0, time.time() - earliest) + TIME_MARGIN_S
        self._begin_at(folder.endpoint.lines_since(folder.attempt_dir, folder.nodes, self.selection.outputs, since_s))

    def _begin_at(self, positions: Positions) -> None:
        self._followed_to = None
        self.offsets = dict(positions.offsets)
        self.skipped = {file: deque(parts) for file, parts in positions.skipped.items()}
        self.nodes.clear()
        for file, offset in positions.offsets.items():
            node, _, name = file.partition("/")
            if name != OFFSETS:
                self._lines_of(node).begin_at(name, offset, positions.written.get(file, ()))

    @property
    def is_at_start(self) -> bool:
        """True if no line of an output file was left out or read yet."""
        return not any(offset for file, offset in self.offsets.items() if not file.endswith(".jsonl"))

    def read(self, *, wait_s: float, max_bytes: int = CHUNK_BYTES) -> list[LogLines]:
        """Read new lines, in order of time, waiting up to `wait_s` for some."""
        folder, position = self.folder, self._followed_to
        self._followed_to = None  # until the lines are read: a request may fail
        chunks, position = folder.endpoint.follow(
            folder.attempt_dir,
            folder.nodes,
            self.offsets,
            position=position,
            outputs=self.selection.outputs,
            max_bytes=max_bytes,
            wait_s=wait_s,
        )
        lines = self._lines(chunks)
        self._followed_to = position
        self.has_read = bool(chunks)
        return list(in_order(lines.values()))

    def readable_from(self, file: str, end: int) -> tuple[int, int]:
        """The next part of an output file to read, up to `end` at most, behind what is left out at its position."""
        parts = self.skipped.get(file, ())
        while parts and self.offsets.get(file, 0) >= parts[0][0]:
            self.offsets[file] = max(self.offsets[file], parts.popleft()[1])
            node, _, name = file.partition("/")
            self._lines_of(node).gap(name, self.offsets[file], 0.0)  # between two lines
        return self.offsets.get(file, 0), min(end, parts[0][0]) if parts else end

    def read_until(self, ends: Mapping[str, int], *, max_bytes: int) -> dict[str, list[LogLines]]:
        """Read these files up to an offset each; returns the lines that end there, by file."""
        self._followed_to = None
        ranges = {file: (self.offsets.get(file, 0), end) for file, end in ends.items()}
        return self._lines(self.folder.endpoint.read(self.folder.attempt_dir, ranges, max_bytes=max_bytes))

    def _lines(self, chunks: Sequence[Chunk]) -> dict[str, list[LogLines]]:
        """The lines that end in the chunks, by file; the offsets are moved to their ends."""
        arrival = time.time()
        lines: dict[str, list[LogLines]] = {}
        for chunk in chunks:
            node, _, name = chunk.file.partition("/")
            self.offsets[chunk.file] = chunk.end
            if chunk.gap:
                text = f"{name} became {chunk.gap} bytes shorter; the lost bytes are not in this log"
                unfinished = self._lines_of(node).gap(name, chunk.offset, arrival)
                lines.setdefault(chunk.file, []).extend([*unfinished, LogLines(arrival, node, None, "event", text)])
            fed = self._lines_of(node).feed(name, chunk.offset, chunk.data, arrival, correction_s=chunk.correction_s)
            lines.setdefault(chunk.file, []).extend(fed)
        return lines

    def indexed_bytes(self, file: str) -> int:
        """The number of bytes of an output file whose write times are known."""
        node, _, name = file.partition("/")
        return self._lines_of(node).indexed_bytes(name)

    def indexed_s(self, node: str) -> float:
        """The time of the last index record of a node that was read: bytes beyond the known ones were written later."""
        return self._lines_of(node).indexed_s

    def observe(self) -> list[NodeObservation]:
        """
        The state of the nodes; none if no event is new and the last observation is too recent for their number, or without `observes`.

        Without a new event, only nodes are observed again whose agent runs on the endpoint's machine, or has not started.
        """
        now, events = time.monotonic(), sum(len(node.events) for node in self.nodes.values())
        if not self.observes or (events == self._observed_events and now < self._next_observation_s):
            return []
        observations = self.folder.endpoint.observe(self.folder.attempt_dir, self.folder.nodes)
        self._observed_events = events
        can_change = any(node.same_boot or node.agent is None for node in observations)
        pause_s = max(len(observations) / OBSERVATIONS_PER_S, 0.0 if can_change else self.observe_every_s)
        self._next_observation_s = now + pause_s
        return observations

    def limit(self, write_times: int, line_bytes: int) -> None:
        """Keep at most that many write times of each file, and that many bytes of an unfinished line."""
        self._limits = write_times, line_bytes
        for node in self.nodes.values():
            node.limit(*self._limits)

    def bars(self) -> list[LogLines]:
        """The newest states of progress bars, which are one line until they are complete."""
        now = time.time()
        return [line for node in self.nodes.values() for line in node.bars(now, self.bar_every_s)]

    def unfinished_lines(self) -> list[LogLines]:
        """The last lines, which no newline ends; for the end of an attempt."""
        now = time.time()
        return [line for node in self.nodes.values() for line in node.close(now)]

    def gaps(self, error: NodeError) -> list[LogLines]:
        """One line per node: the rest of the node's logs cannot be read, for this error."""
        now = time.time()
        lines = []
        for name in self.folder.nodes or sorted(self.nodes):
            missing = self._lines_of(name).missing_bytes
            size = f"at least {missing} bytes" if missing else "how much is not known"
            reason = error.reason if error.node == name else str(error)
            text = f"gap: {name} cannot be read ({reason}); newer output of these ranks is not in this log, {size}"
            lines.append(LogLines(now, name, None, "event", text))
        return lines

    def _lines_of(self, node: str) -> NodeLines:
        if node not in self.nodes:
            self.nodes[node] = NodeLines(node, partial(self.selection.wants_output, node))
            self.nodes[node].limit(*self._limits)
        return self.nodes[node]


def read_all(feeds: Sequence[Feed], *, limit: int) -> list[list[LogLines] | NodeError]:
    """Read new lines of all feeds at the same time, one chunk at most; returns the lines or the failure of each."""
    chunk = chunk_bytes(len(feeds))
    results = map_parallel(feeds, lambda feed: feed.read(wait_s=0, max_bytes=chunk), limit=limit)
    failed_nodes(results)  # raises an error that is not a node's
    return [result for result in results if isinstance(result, (list, NodeError))]


def chunk_bytes(sources: int) -> int:
    """The bytes that are read of each of so many files or feeds at once."""
    return max(LEAST_CHUNK_BYTES, min(CHUNK_BYTES, HELD_BYTES // max(1, sources)))


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one read of a feed: new lines, the state of the nodes if there are no new lines, or the error."""

    feed: Feed
    lines: Sequence[LogLines] = ()
    nodes: Sequence[NodeObservation] = ()
    error: NodeError | None = None


@contextmanager
def live(feeds: Sequence[Feed]) -> Iterator[tuple[Iterator[list[Batch]], threading.Event]]:
    """
    Follow all feeds, one thread per feed, until the context ends.

    Yields an iterator of the batches that arrived since its last step, and an event: once the consumer sets it, nothing more
    is read, and the iterator ends after the batches that were read before. A lost connection is retried, and reading continues
    where it stopped.
    """
    exchange = _Exchange()
    chunk = chunk_bytes(len(feeds))
    threads = [threading.Thread(target=_pump, args=(feed, exchange, chunk), daemon=True) for feed in feeds]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        yield exchange.until_ended(len(feeds)), exchange.enough
    finally:
        exchange.enough.set()
        exchange.abandoned.set()
        deadline = time.monotonic() + LEAVE_S  # for all: a thread that waits for a silent node ends with the process
        for thread in started:
            thread.join(max(0.0, deadline - time.monotonic()))


class _Exchange:
    """The queue from the reading threads to the consumer; each thread ends with None."""

    def __init__(self) -> None:
        self.batches: queue.Queue[Batch | None] = queue.Queue(maxsize=WAITING_BATCHES)
        self.enough, self.abandoned = threading.Event(), threading.Event()

    def offer(self, batch: Batch | None) -> None:
        """Put a batch into the queue; wait while it is full, which slows the reading down and bounds the memory."""
        while not self.abandoned.is_set():
            try:
                return self.batches.put(batch, timeout=POLL_S)
            except queue.Full:
                continue
        return None

    def take(self) -> list[Batch | None]:
        """Get all waiting batches; none after POLL_S without any."""
        taken: list[Batch | None] = []
        with contextlib.suppress(queue.Empty):
            taken.append(self.batches.get(timeout=POLL_S))
            while len(taken) < WAITING_BATCHES:
                taken.append(self.batches.get_nowait())
        return taken

    def until_ended(self, running: int) -> Iterator[list[Batch]]:
        """The batches that have arrived, step by step, until as many threads have ended."""
        while running:
            taken = self.take()
            running -= taken.count(None)
            yield [batch for batch in taken if batch is not None]


def merged(batches: Sequence[Batch]) -> Iterator[LogLines]:
    """The lines of all batches in order of time; lines of one feed keep their order of arrival."""
    by_feed: dict[int, list[LogLines]] = {}
    for batch in batches:
        by_feed.setdefault(id(batch.feed), []).extend(batch.lines)
    return in_order(by_feed.values())


def _pump(feed: Feed, exchange: _Exchange, chunk: int) -> None:
    """Read a feed to the end, in a separate thread."""
    pauses = backoff(LAST_RETRY_S)
    try:
        while not exchange.enough.is_set():
            ended = _ended(feed)  # then no more lines are written, so do not wait for any
            try:
                lines = [*feed.read(wait_s=0 if ended else POLL_S, max_bytes=chunk), *feed.bars()]
                batch = Batch(feed, lines, [] if lines else feed.observe())
            except NodeError as exc:
                exchange.offer(Batch(feed, error=exc))
                exchange.enough.wait(next(pauses))
                continue
            pauses = backoff(LAST_RETRY_S)
            exchange.offer(batch)
            if ended and not feed.has_read:
                return
    finally:
        exchange.offer(None)


def _ended(feed: Feed) -> bool:
    """True if the agents of all nodes of the feed have recorded their last event."""
    ends = [node for node in feed.nodes.values() if node.events and node.events[-1]["event"] == Kind.AGENT_FINISHED]
    return feed.folder.nodes is not None and len(ends) == len(feed.folder.nodes)
