"""From the node folders of a run to its lines: the past in order of time, and what comes, as it comes."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from orchestrator.errors import NodeError
from orchestrator.launchers.base import Place
from orchestrator.logs.merge import LogLines, NodeLines, in_order
from orchestrator.transports.observed import NodeObservation

CHUNK_BYTES = 1 << 20
HISTORY_BYTES = 1 << 26  # held while merging: a chunk of every file
LEAST_CHUNK_BYTES = 1 << 16
POLL_S = 1.0
WAITING_BATCHES = 16
FIRST_RETRY_S, LAST_RETRY_S = 0.2, 5.0


@dataclass(slots=True)
class Feed:
    """One place being read: how far each file is read, and the unfinished lines."""

    place: Place
    offsets: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, NodeLines] = field(default_factory=dict)

    def read(self, *, wait_s: float, only: Sequence[str] | None = None, max_bytes: int = CHUNK_BYTES) -> list[LogLines]:
        """Read what is new, waiting up to `wait_s` for it; lines in order of time."""
        place = self.place
        chunks = place.endpoint.read(
            place.attempt_dir, place.nodes, self.offsets, max_bytes=max_bytes, wait_s=wait_s, only=only
        )
        arrival = time.time()
        lines: dict[str, list[LogLines]] = {}
        for chunk in chunks:
            node, _, name = chunk.file.partition("/")
            self.offsets[chunk.file] = chunk.end
            if chunk.gap:
                lost = f"{name} became {chunk.gap} bytes shorter; what stood there is not in this log"
                lines.setdefault(chunk.file, []).append(LogLines(arrival, node, None, "event", lost))
            lines.setdefault(chunk.file, []).extend(
                self._lines_of(node).feed(name, chunk.offset, chunk.data, arrival, shift_s=chunk.shift_s)
            )
        return list(in_order(lines.values()))

    def rest(self) -> list[LogLines]:
        """The last lines that have no newline; for the end of a run."""
        now = time.time()
        return [line for node in self.nodes.values() for line in node.close(now)]

    def gaps(self, error: NodeError) -> list[LogLines]:
        """What to say of the place's nodes when they cannot be read to the end."""
        now = time.time()
        lines = []
        for name in self.place.nodes or sorted(self.nodes):
            missing = self._lines_of(name).known_missing
            size = f"at least {missing} bytes" if missing else "how much is not known"
            text = f"gap: {name} cannot be read ({error}); what its ranks wrote since is not in this log, {size}"
            lines.append(LogLines(now, name, None, "event", text))
        return lines

    def _lines_of(self, node: str) -> NodeLines:
        return self.nodes.setdefault(node, NodeLines(node))


def history(feeds: Sequence[Feed]) -> Iterator[LogLines]:
    """Everything that stands in the files now, merged by time; one chunk of each file is in memory at a time."""
    streams: list[Iterator[LogLines]] = []
    sizes_of = [feed.place.endpoint.files(feed.place.attempt_dir, feed.place.nodes) for feed in feeds]
    chunk = max(LEAST_CHUNK_BYTES, min(CHUNK_BYTES, HISTORY_BYTES // max(1, sum(map(len, sizes_of)))))
    for feed, sizes in zip(feeds, sizes_of, strict=True):
        index = [file for file in sizes if file.endswith(".jsonl")]
        events: list[LogLines] = []
        while any(feed.offsets.get(file, 0) < sizes[file] for file in index):
            events += feed.read(wait_s=0, only=index)
        streams.append(iter(events))
        streams += [_file_history(feed, file, size, chunk) for file, size in sizes.items() if file not in index]
    return in_order(streams)


def _file_history(feed: Feed, file: str, size: int, chunk: int) -> Iterator[LogLines]:
    while feed.offsets.get(file, 0) < size:
        before = feed.offsets.get(file, 0)
        yield from feed.read(wait_s=0, only=[file], max_bytes=min(chunk, size - before))
        if feed.offsets.get(file, 0) == before:
            return  # the file is shorter than it was: nothing more can be had


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
    batches: queue.Queue[Batch] = queue.Queue(maxsize=WAITING_BATCHES)
    enough, abandoned = threading.Event(), threading.Event()
    threads = [threading.Thread(target=_pump, args=(feed, batches, enough, abandoned), daemon=True) for feed in feeds]
    for thread in threads:
        thread.start()
    try:
        yield _until_all_ended(batches, threads), enough
    finally:
        enough.set()
        abandoned.set()
        for thread in threads:
            thread.join(timeout=POLL_S * 2)


def merged(batches: Sequence[Batch]) -> Iterator[LogLines]:
    """The lines of what came together, in order of time; those of one place stay in the order in which they came."""
    by_feed: dict[int, list[LogLines]] = {}
    for batch in batches:
        by_feed.setdefault(id(batch.feed), []).extend(batch.lines)
    return in_order(by_feed.values())


def _until_all_ended(batches: queue.Queue[Batch], threads: Sequence[threading.Thread]) -> Iterator[list[Batch]]:
    while True:
        try:
            some = [batches.get(timeout=POLL_S)]
        except queue.Empty:
            if not any(thread.is_alive() for thread in threads) and batches.empty():
                return
            yield []
            continue
        with contextlib.suppress(queue.Empty):
            while len(some) < WAITING_BATCHES:
                some.append(batches.get_nowait())
        yield some


def _pump(feed: Feed, batches: queue.Queue[Batch], enough: threading.Event, abandoned: threading.Event) -> None:
    pause_s = FIRST_RETRY_S
    while not enough.is_set():
        ended = _ended(feed)  # then nothing more is written, and nothing is waited for
        try:
            batch = _next(feed, wait_s=0 if ended else POLL_S)
        except NodeError as exc:
            _offer(batches, Batch(feed, error=exc), abandoned)
            enough.wait(pause_s * random.uniform(0.5, 1.5))  # noqa: S311  it spreads many readers' retries, it is no secret
            pause_s = min(2 * pause_s, LAST_RETRY_S)
            continue
        pause_s = FIRST_RETRY_S
        _offer(batches, batch, abandoned)
        if ended and not batch.lines:
            return


def _next(feed: Feed, *, wait_s: float) -> Batch:
    place = feed.place
    lines = feed.read(wait_s=wait_s)
    return Batch(feed, lines, [] if lines else place.endpoint.observe(place.attempt_dir, place.nodes))


def _ended(feed: Feed) -> bool:
    """Whether the agents of all nodes of the place have said their last word."""
    ends = [node for node in feed.nodes.values() if node.events and node.events[-1]["event"] == "agent-finished"]
    return feed.place.nodes is not None and len(ends) == len(feed.place.nodes)


def _offer(batches: queue.Queue[Batch], batch: Batch, abandoned: threading.Event) -> None:
    """Hand over, waiting while the reader is busy, which in turn slows reading down: memory stays bounded."""
    while not abandoned.is_set():
        try:
            return batches.put(batch, timeout=POLL_S)
        except queue.Full:
            continue
    return None
