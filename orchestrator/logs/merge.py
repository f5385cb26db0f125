"""From raw chunks of many files to lines in order of time. Pure: bytes and offsets in, LogLines out."""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestrator.logs.printable import printable

Stream = Literal["out", "err", "event"]
MAX_LINE_BYTES = 1 << 20
"""A longer line is cut into pieces of this size, so that a line without an end cannot fill the memory."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one rank; `rank` is None for the agent's own, `time` is seconds since the epoch."""

    time: float
    node: str
    rank: int | None
    stream: Stream
    text: str
    goes_on: bool = False
    """The line before it, of the same rank and stream, was cut because it was too long, and this is the next piece."""

    def to_json(self) -> dict[str, Any]:
        """The fields in the order time, node, rank, stream, text; `goes_on` only where it is so."""
        data = asdict(self)
        if not self.goes_on:
            del data["goes_on"]
        return data


class FileLines:
    """
    The lines of one rank's file, fed in order.

    `marks` are the agent's records of how long the file was when: they give a line the time it was written, to within
    the agent's tick. Bytes beyond the last mark get the time of their arrival.
    """

    def __init__(self, node: str, rank: int, stream: Stream) -> None:
        self._of = (node, rank, stream)
        self._marks: deque[tuple[int, float]] = deque()
        self._rest = b""
        self._end = 0
        self._is_cut = False

    @property
    def known_missing(self) -> int:
        """Bytes that the agent has told of, but that were not read."""
        return max([0, *(size - self._end for size, _ in self._marks)])

    def mark(self, size: int, time: float) -> None:
        """The file had `size` bytes at `time`."""
        self._marks.append((size, time))

    def feed(self, offset: int, data: bytes, arrival: float) -> Iterator[LogLine]:
        """Take bytes that begin at `offset`; yield the lines they complete."""
        start = self._end - len(self._rest)
        buffer = self._rest + data
        self._end = offset + len(data)
        *lines, self._rest = buffer.split(b"\n")
        for line in lines:
            start += len(line) + 1
            yield from self._line(line, start, arrival)
        while len(self._rest) > MAX_LINE_BYTES:
            at = _cut(self._rest, 0)
            piece, self._rest = self._rest[:at], self._rest[at:]
            yield self._as_line(piece, self._end - len(self._rest), arrival, is_cut=True)

    def close(self, arrival: float) -> Iterator[LogLine]:
        """Yield what stands after the last newline."""
        if self._rest:
            rest, self._rest = self._rest, b""
            yield from self._line(rest, self._end, arrival)

    def _line(self, line: bytes, end: int, arrival: float) -> Iterator[LogLine]:
        first = 0
        while first < len(line) or not first:
            until = _cut(line, first)
            yield self._as_line(line[first:until], end, arrival, is_cut=until < len(line))
            if until >= len(line):
                return
            first = until

    def _as_line(self, line: bytes, end: int, arrival: float, *, is_cut: bool) -> LogLine:
        while self._marks and self._marks[0][0] < end:
            self._marks.popleft()
        time = self._marks[0][1] if self._marks else arrival
        node, rank, stream = self._of
        goes_on, self._is_cut = self._is_cut, is_cut
        return LogLine(time, node, rank, stream, line.removesuffix(b"\r").decode("utf-8", "replace"), goes_on)


def _cut(line: bytes, first: int) -> int:
    """Where a piece that begins at `first` ends: after MAX_LINE_BYTES at most, and never within a character of UTF-8."""
    until = first + MAX_LINE_BYTES
    if until >= len(line):
        return len(line)
    return next((at for at in range(until, until - 4, -1) if line[at] & 0xC0 != 0x80), until)  # noqa: PLR2004  a continuation byte


class NodeLines:
    """The lines of one node folder: its ranks' files, and its agent's events as lines of no rank."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.events: list[dict[str, Any]] = []
        self._files: dict[str, FileLines] = {}
        self._rest: dict[str, bytes] = {}

    def feed(self, name: str, offset: int, data: bytes, arrival: float, *, shift_s: float = 0.0) -> list[LogLine]:
        """Take a chunk of the folder's file `name`, to whose times shift_s is added; return the lines it completes."""
        if name == "offsets.jsonl":
            for mark in self._records(name, data):
                for file, size in mark["size"].items():
                    self._file(file).mark(size, mark["time"] + shift_s)
            return []
        if name == "events.jsonl":
            events = self._records(name, data)
            self.events += events
            return [LogLine(event["time"] + shift_s, self.node, None, "event", event["text"]) for event in events]
        return list(self._file(name).feed(offset, data, arrival))

    def close(self, arrival: float) -> list[LogLine]:
        """The unfinished last lines."""
        return [line for file in self._files.values() for line in file.close(arrival)]

    @property
    def known_missing(self) -> int:
        """Bytes of its ranks that are known to exist, but were not read."""
        return sum(file.known_missing for file in self._files.values())

    def _file(self, name: str) -> FileLines:
        if name not in self._files:
            stem, _, stream = name.rpartition(".")
            self._files[name] = FileLines(
                self.node, int(stem.removeprefix("rank-")), "err" if stream == "err" else "out"
            )
        return self._files[name]

    def _records(self, name: str, data: bytes) -> list[dict[str, Any]]:
        *lines, self._rest[name] = (self._rest.get(name, b"") + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


def in_order(streams: Iterable[Iterable[LogLine]]) -> Iterator[LogLine]:
    """Merge streams by time; lines of one stream keep their order."""
    return heapq.merge(*(_ascending(stream) for stream in streams), key=lambda line: line.time)


def _ascending(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """A clock that is set back must not move a line before its predecessor."""
    from dataclasses import replace  # noqa: PLC0415

    latest = 0.0
    for line in lines:
        latest = max(latest, line.time)
        yield line if line.time == latest else replace(line, time=latest)


def prefixed(line: LogLine) -> str:
    """
    `[node:rank] text`, and `[node:-] text` for the agent's own; a piece of a long line begins with `…`.

    Every printed line begins with orch's own prefix, so one that imitates a prefix has two.
    """
    text = f"…{line.text}" if line.goes_on else line.text
    return f"[{line.node}:{'-' if line.rank is None else line.rank}] {printable(text)}"
