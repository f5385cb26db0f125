"""From the node folders of a run to its lines: the past in order of time, and what comes, as it comes."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from orchestrator.backoff import backoff
from orchestrator.endpoint.replies import NodeObservation
from orchestrator.errors import NodeError
from orchestrator.launchers.base import AttemptFolder
from orchestrator.logs.lines import LogLines, NodeLines, in_order
from orchestrator.node.events import EVENTS, OFFSETS, Kind

T = TypeVar("T")
CHUNK_BYTES = 1 << 20
HELD_BYTES = 1 << 25  # while merging: a chunk of every file, or of every place, which as text takes as much again
LEAST_CHUNK_BYTES = 1 << 16
INDEX_BYTES = 1 << 18
POLL_S = 1.0
WAITING_BATCHES = 16
LAST_RETRY_S = 5.0


@dataclass(slots=True)
class Feed:
    """One place being read: how far each file is read, and the unfinished lines."""

    folder: AttemptFolder
    offsets: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, NodeLines] = field(default_factory=dict)
    failure: NodeError | None = None
    """Why what stood in its files could not be read, or not to the end."""

    def read(self, *, wait_s: float, only: Sequence[str] | None = None, max_bytes: int = CHUNK_BYTES) -> list[LogLines]:
        """Read what is new, waiting up to `wait_s` for it; lines in order of time."""
        folder = self.folder
        chunks = folder.endpoint.read(
            folder.attempt_dir, folder.nodes, self.offsets, max_bytes=max_bytes, wait_s=wait_s, only=only
        )
        arrival = time.time()
        lines: dict[str, list[LogLines]] = {}
        for chunk in chunks:
            node, _, name = chunk.file.partition("/")
            self.offsets[chunk.file] = chunk.end
            if chunk.gap:
                lost = f"{name} became {chunk.gap} bytes shorter; what stood there is not in this log"
                found = self._lines_of(node).gap(name, chunk.offset, arrival)
                lines.setdefault(chunk.file, []).extend([*found, LogLines(arrival, node, None, "event", lost)])
            lines.setdefault(chunk.file, []).extend(
                self._lines_of(node).feed(name, chunk.offset, chunk.data, arrival, correction_s=chunk.correction_s)
            )
        return list(in_order(lines.values()))

    def read_index(self, file: str, until: int) -> None:
        """Read on in the agent's index of times, as far as it covers so many bytes of the file."""
        node, _, name = file.partition("/")
        index, before = f"{node}/{OFFSETS}", -1
        while self._lines_of(node).marked(name) < until and self.offsets.get(index, 0) > before:
            before = self.offsets.get(index, 0)
            self.read(wait_s=0, only=[index], max_bytes=INDEX_BYTES)

    def rest(self) -> list[LogLines]:
        """The last lines that have no newline; for the end of a run."""
        now = time.time()
        return [line for node in self.nodes.values() for line in node.close(now)]

    def gaps(self, error: NodeError) -> list[LogLines]:
        """What to say of the place's nodes when they cannot be read to the end."""
        now = time.time()
        lines = []
        for name in self.folder.nodes or sorted(self.nodes):
            missing = self._lines_of(name).known_missing
            size = f"at least {missing} bytes" if missing else "how much is not known"
            reason = error.reason if error.node == name else str(error)
            text = f"gap: {name} cannot be read ({reason}); what its ranks wrote since is not in this log, {size}"
            lines.append(LogLines(now, name, None, "event", text))
        return lines

    def _lines_of(self, node: str) -> NodeLines:
        return self.nodes.setdefault(node, NodeLines(node))


def history(feeds: Sequence[Feed]) -> Iterator[LogLines]:
    """
    Everything that stands in the files now, merged by time; one chunk of each file is in memory at a time.

    A place that is lost meanwhile is reached again, once for every step; where that fails, the others go on, and its
    `failure` says why there is no more of it.
    """
    streams: list[Iterator[LogLines]] = []
    sizes_of = [_twice(feed, partial(_sizes, feed)) or {} for feed in feeds]
    chunk = _chunk_bytes(sum(map(len, sizes_of)))
    for feed, sizes in zip(feeds, sizes_of, strict=True):
        files = {file: size for file, size in sizes.items() if not file.endswith(f"/{OFFSETS}")}
        streams += [_file_history(feed, file, size, chunk) for file, size in files.items()]
    return in_order(streams)


def _chunk_bytes(sources: int) -> int:
    return max(LEAST_CHUNK_BYTES, min(CHUNK_BYTES, HELD_BYTES // max(1, sources)))


def _file_history(feed: Feed, file: str, size: int, chunk: int) -> Iterator[LogLines]:
    while feed.offsets.get(file, 0) < size:
        before = feed.offsets.get(file, 0)
        yield from _twice(feed, partial(_read_chunk, feed, file, min(size, before + chunk))) or ()
        if feed.offsets.get(file, 0) == before:
            return  # the file is shorter than it was, or its node is gone: nothing more can be had


def _sizes(feed: Feed) -> dict[str, int]:
    return feed.folder.endpoint.files(feed.folder.attempt_dir, feed.folder.nodes)


def _read_chunk(feed: Feed, file: str, until: int) -> list[LogLines]:
    if not file.endswith(f"/{EVENTS}"):
        feed.read_index(file, until)
    return feed.read(wait_s=0, only=[file], max_bytes=until - feed.offsets.get(file, 0))


def _twice(feed: Feed, read: Callable[[], T]) -> T | None:
    """What is read, at the second try if the connection is lost at the first; None where nothing can be read any more."""
    if feed.failure is None:
        try:
            return read()
        except NodeError:
            try:
                return read()
            except NodeError as error:
                feed.failure = error
    return None


@dataclass(frozen=True, slots=True)
class Batch:
    """What one place had to say: lines, or when it was silent, how its nodes are; or why it cannot be heard for now."""

    feed: Feed
    lines: Sequence[LogLines] = ()
    nodes: Sequence[NodeObservation] = ()
    error: NodeError | None = None


@contextmanager
def live(feeds: Sequence[Feed]) -> Iterator[tuple[Iterator[list[Batch]], threading.Event]]:
    """
    Follow all places at once, each in a thread of its own, until the context ends.

    Yields what has come meanwhile, together, and an event: once the reader sets it, nothing more is asked for, and the
    iterator ends when all that was read is handed over. A place that is lost is tried again, and read on where it stopped.
    """
    exchange = _Exchange()
    chunk = _chunk_bytes(len(feeds))
    threads = [threading.Thread(target=_pump, args=(feed, exchange, chunk), daemon=True) for feed in feeds]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        yield _until_all_ended(exchange, len(feeds)), exchange.enough
    finally:
        exchange.enough.set()
        exchange.abandoned.set()
        for thread in started:
            thread.join(timeout=POLL_S * 2)


class _Exchange:
    """Where the threads of a follow hand over what they have read. None is the last word of one."""

    def __init__(self) -> None:
        self.batches: queue.Queue[Batch | None] = queue.Queue(maxsize=WAITING_BATCHES)
        self.enough, self.abandoned = threading.Event(), threading.Event()

    def offer(self, batch: Batch | None) -> None:
        """Hand over, waiting while the reader is busy, which in turn slows reading down: memory stays bounded."""
        while not self.abandoned.is_set():
            try:
                return self.batches.put(batch, timeout=POLL_S)
            except queue.Full:
                continue
        return None

    def take(self) -> list[Batch | None]:
        """What has come meanwhile; nothing when nothing comes for a while."""
        some: list[Batch | None] = []
        with contextlib.suppress(queue.Empty):
            some.append(self.batches.get(timeout=POLL_S))
            while len(some) < WAITING_BATCHES:
                some.append(self.batches.get_nowait())
        return some


def merged(batches: Sequence[Batch]) -> Iterator[LogLines]:
    """The lines of what came together, in order of time; those of one place stay in the order in which they came."""
    by_feed: dict[int, list[LogLines]] = {}
    for batch in batches:
        by_feed.setdefault(id(batch.feed), []).extend(batch.lines)
    return in_order(by_feed.values())


def _until_all_ended(exchange: _Exchange, running: int) -> Iterator[list[Batch]]:
    while running:
        some = exchange.take()
        running -= some.count(None)
        yield [batch for batch in some if batch is not None]


def _pump(feed: Feed, exchange: _Exchange, chunk: int) -> None:
    try:
        _read_on(feed, exchange, chunk)
    finally:
        exchange.offer(None)


def _read_on(feed: Feed, exchange: _Exchange, chunk: int) -> None:
    pauses = backoff(LAST_RETRY_S)
    while not exchange.enough.is_set():
        ended = _ended(feed)  # then nothing more is written, and nothing is waited for
        try:
            batch = _next(feed, chunk, wait_s=0 if ended else POLL_S)
        except NodeError as exc:
            exchange.offer(Batch(feed, error=exc))
            exchange.enough.wait(next(pauses))
            continue
        pauses = backoff(LAST_RETRY_S)
        exchange.offer(batch)
        if ended and not batch.lines:
            return


def _next(feed: Feed, chunk: int, *, wait_s: float) -> Batch:
    folder = feed.folder
    lines = feed.read(wait_s=wait_s, max_bytes=chunk)
    return Batch(feed, lines, [] if lines else folder.endpoint.observe(folder.attempt_dir, folder.nodes))


def _ended(feed: Feed) -> bool:
    """Whether the agents of all nodes of the place have said their last word."""
    ends = [node for node in feed.nodes.values() if node.events and node.events[-1]["event"] == Kind.AGENT_FINISHED]
    return feed.folder.nodes is not None and len(ends) == len(feed.folder.nodes)
