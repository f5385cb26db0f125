"""Read the present content of all files of an attempt, merged by time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from orchestrator.errors import NodeError
from orchestrator.fanout import map_parallel, successes
from orchestrator.logs.follow import Feed, chunk_bytes
from orchestrator.logs.lines import MAX_LINE_BYTES, MAX_WRITE_TIMES, LogLines, in_order
from orchestrator.node.run.events import EVENTS, OFFSETS

T = TypeVar("T")
HELD_WRITE_TIMES = 1 << 22  # of all files of a history, 64 MiB
LEAST_WRITE_TIMES = 256  # of a file
HELD_LINE_BYTES = 1 << 27  # of the unfinished lines of all files, such as progress bars
LEAST_LINE_BYTES = 1 << 12  # of a file
ROUND_BYTES = 1 << 22  # of one read of the history of a feed
INDEX_BYTES = 1 << 18  # of one read of a node's index: its write times are fewer than MAX_WRITE_TIMES


def reposition(feeds: Sequence[Feed], move: Callable[[Feed], None], *, limit: int) -> None:
    """Move the positions of all feeds, `limit` at the same time; a feed that cannot be reached gets a failure."""
    map_parallel(feeds, lambda feed: _retry_once(feed, partial(move, feed)), limit=limit)


@dataclass(frozen=True, slots=True)
class _Placeholder(LogLines):
    """No line: a file has none before this time, so the merge continues with the other files."""


def history(feeds: Sequence[Feed], *, limit: int) -> Iterator[LogLines]:
    """
    The present content of all files from the feeds' positions, merged by time; one chunk of each file is in memory at a time.

    Each read takes all files of which little is left in memory, of all feeds at the same time: a read for each file would wait
    for as many answers as there are files. If a connection is lost, the read is retried once; if that fails too, the other
    feeds continue, and the `failure` of this feed is set.
    """
    sizes_of = successes(map_parallel(feeds, lambda feed: _retry_once(feed, partial(_sizes, feed)) or {}, limit=limit))
    files = sum(not _is_index(file) for sizes in sizes_of for file in sizes)
    chunk = chunk_bytes(files)
    write_times = max(LEAST_WRITE_TIMES, min(MAX_WRITE_TIMES, HELD_WRITE_TIMES // max(1, files)))
    line_bytes = max(LEAST_LINE_BYTES, min(MAX_LINE_BYTES, HELD_LINE_BYTES // max(1, files)))
    for feed in feeds:
        feed.limit(write_times, line_bytes)
    histories = [_History(feed, sizes, chunk) for feed, sizes in zip(feeds, sizes_of, strict=True)]

    def read(now: float) -> None:
        successes(map_parallel(histories, lambda past: past.read(now), limit=limit))

    lines = in_order(past.lines_of(file, read) for past in histories for file in past.files)
    return (group for group in lines if not isinstance(group, _Placeholder))


def _sizes(feed: Feed) -> dict[str, int]:
    return feed.folder.endpoint.files(feed.folder.attempt_dir, feed.folder.nodes, feed.selection.outputs)


def _is_index(file: str) -> bool:
    return file.endswith(f"/{OFFSETS}")


class _History:
    """
    The content of one feed's files up to their present sizes; at most one chunk of each is in memory.

    A node's index of write times is read in pieces, as far as the merge has come, and an output file only as far as its write times
    are known. Otherwise the last line of a file that is rarely written would need the whole index before the first line is shown.
    """

    def __init__(self, feed: Feed, sizes: Mapping[str, int], chunk: int) -> None:
        self.files = [file for file in sizes if not _is_index(file)]
        self._sizes = sizes
        self._feed = feed
        self._chunk = chunk
        self._read_lines: dict[str, deque[LogLines]] = {file: deque() for file in self.files}
        self._held = dict.fromkeys(self.files, 0)
        """Characters of the lines in memory."""
        self._unread = {file for file in self.files if feed.offsets.get(file, 0) < sizes[file]}
        """Files that may have more bytes."""
        self._unread_indexes = {file for file in sizes if _is_index(file) and feed.offsets.get(file, 0) < sizes[file]}
        self._index_due_s: dict[str, float] = {}
        """Index -> time in the log from which its next piece is read; the first piece is read at once."""

    def read(self, now: float) -> None:
        """Read on; `now` is the time that the merge has reached."""
        self._read_indexes(now)
        self._read_files()
        if self._feed.failure is not None:
            self._unread.clear()

    def _read_indexes(self, now: float) -> None:
        """Read the next piece of the indexes that unread files need, once the merge is past the middle of the last piece."""
        feed = self._feed
        needed = {_index_of(file) for file in self._unread if self._readable_bytes(file) < self._sizes[file]}
        starts = {file: feed.offsets.get(file, 0) for file in needed if now >= self._index_due_s.get(file, now)}
        before = {file: feed.indexed_s(_node_of(file)) for file in starts}
        ends = {file: min(self._sizes[file], start + INDEX_BYTES) for file, start in starts.items()}
        if ends:
            _retry_once(feed, partial(feed.read_until, ends, max_bytes=ROUND_BYTES))
        has_progress = any(feed.offsets.get(file, 0) != start for file, start in starts.items())
        for file, first_s in before.items():
            last_s = feed.indexed_s(_node_of(file))
            self._index_due_s[file] = last_s if math.isinf(first_s) else (first_s + last_s) / 2
            if not has_progress or feed.offsets.get(file, 0) >= self._sizes[file]:  # or it became shorter
                self._unread_indexes.discard(file)

    def _read_files(self) -> None:
        """Read on in the files of which at most half a chunk is in memory, as many as one answer may have; emptied ones first."""
        offsets, ends, left = self._feed.offsets, dict[str, int](), ROUND_BYTES
        for file in sorted(self._unread, key=self._held.__getitem__):
            held = self._held[file]
            start, end = self._feed.readable_from(file, self._readable_bytes(file))
            end = min(end, start + self._chunk - held, start + left)
            if held <= self._chunk // 2 and end > start:
                ends[file] = end
                left -= end - start
        starts = {file: offsets.get(file, 0) for file in ends}
        lines = _retry_once(self._feed, partial(self._feed.read_until, ends, max_bytes=ROUND_BYTES)) if ends else {}
        for file, groups in (lines or {}).items():
            self._read_lines[file].extend(groups)
            self._held[file] += sum(len(group.text) for group in groups)
        offsets = self._feed.offsets
        self._unread -= {file for file, start in starts.items() if offsets.get(file, 0) == start}
        self._unread -= {file for file in self._unread if offsets.get(file, 0) >= self._sizes[file]}

    def _readable_bytes(self, file: str) -> int:
        """The offset up to which a file can be read: an output file as far as the write times are known, unless no more will be."""
        if file.endswith(f"/{EVENTS}") or _index_of(file) not in self._unread_indexes:
            return self._sizes[file]
        return min(self._sizes[file], self._feed.indexed_bytes(file))

    def lines_of(self, file: str, read: Callable[[float], None]) -> Iterator[LogLines]:
        """The lines of one file, and placeholders; `read` reads on in all histories."""
        lines, now = self._read_lines[file], -math.inf
        while True:
            while lines:
                group = lines.popleft()
                self._held[file] -= len(group.text)
                now = max(now, group.time)
                yield group
            if file not in self._unread:  # it was read to its end, became shorter, or its node is gone
                return
            has_readable = self._feed.offsets.get(file, 0) < self._readable_bytes(file)
            # by the index, no unread line of the file was written before this time
            next_line_s = -math.inf if has_readable else self._feed.indexed_s(_node_of(file))
            if next_line_s > now:
                now = next_line_s
                yield _Placeholder(now, _node_of(file), None, "out", "")
            else:
                read(now)


def _node_of(file: str) -> str:
    return file.partition("/")[0]


def _index_of(file: str) -> str:
    return f"{_node_of(file)}/{OFFSETS}"


def _retry_once(feed: Feed, read: Callable[[], T]) -> T | None:
    """The result of `read`, retried once if the connection is lost; None, and a failure of the feed, if that fails too."""
    if feed.failure is None:
        try:
            return read()
        except NodeError:
            try:
                return read()
            except NodeError as error:
                feed.failure = error
    return None
