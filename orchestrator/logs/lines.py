"""From raw chunks of many files to lines in order of time. Pure: bytes and offsets in, LogLines out."""

from __future__ import annotations

import heapq
import json
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from orchestrator.logs.printable import is_printable, printable
from orchestrator.node.events import EVENTS, OFFSETS

Stream = Literal["out", "err", "event"]
MAX_LINE_BYTES = 1 << 20
"""A longer line is cut into pieces of this size, so that a line without an end cannot fill the memory."""
MOST_MARKS = 8192
"""More are thinned out: half an hour of one file's, of days those that are further apart."""


@dataclass(frozen=True, slots=True)
class LogLines:
    """
    Lines that one rank wrote one after another at one time, as far as is known: a single one, or thousands.

    They stay together on their way, for what is done to each line by itself is what makes a merged log slow. `rank` is
    None for the agent's own; `time` is seconds since the epoch.
    """

    time: float
    node: str
    rank: int | None
    stream: Stream
    text: str
    """The lines, with a newline between each two."""
    goes_on: bool = False
    """The line before, of the same rank and stream, was cut because it was too long; this, a single one, is the next piece."""

    @property
    def count(self) -> int:
        """How many lines these are."""
        return self.text.count("\n") + 1

    def last(self, count: int) -> LogLines:
        """The last of them."""
        return replace(self, text="\n".join(self.text.split("\n")[-count:]))

    def to_json(self) -> Iterator[dict[str, Any]]:
        """An object a line, with time, node, rank, stream, text; `goes_on` only where it is so."""
        goes_on = {"goes_on": True} if self.goes_on else {}
        of = {"time": self.time, "node": self.node, "rank": self.rank, "stream": self.stream}
        return ({**of, "text": text, **goes_on} for text in self.text.split("\n"))


def last(lines: Iterable[LogLines], count: int) -> deque[LogLines]:
    """The last `count` lines; no more than these are kept meanwhile."""
    kept: deque[LogLines] = deque()
    held = 0
    for some in lines:
        kept.append(some)
        held += some.count
        while kept and held - kept[0].count >= count:
            held -= kept.popleft().count
    if held > count:
        kept[0] = kept[0].last(kept[0].count - (held - count))
    return kept


class Marks:
    """An agent's records of how long a file was when; those of the bytes to come."""

    def __init__(self) -> None:
        self.size = 0
        """The last one's."""
        self._sizes, self._times, self._first = array("Q"), array("d"), 0

    def add(self, size: int, time: float) -> None:
        """The file had `size` bytes at `time`."""
        if len(self._sizes) == MOST_MARKS:
            self._make_room()
        self._sizes.append(size)
        self._times.append(time)
        self.size = max(self.size, size)

    def covering(self, end: int) -> tuple[int, float] | None:
        """Size and time of the first one that holds the byte before `end`; those before it are forgotten."""
        while self._first < len(self._sizes) and self._sizes[self._first] < end:
            self._first += 1
        return (self._sizes[self._first], self._times[self._first]) if self._first < len(self._sizes) else None

    def _make_room(self) -> None:
        """Forget those that are passed; where these are few, every other one of the rest too."""
        step = 1 if self._first > MOST_MARKS // 2 else 2
        first = self._first + (len(self._sizes) - self._first - 1) % step  # the last one stays
        self._sizes, self._times, self._first = self._sizes[first::step], self._times[first::step], 0


class FileLines:
    """
    The lines of one rank's file, fed in order.

    The marks give a line the time it was written, to within the agent's tick. Bytes beyond the last mark get the time of
    their arrival.
    """

    def __init__(self, node: str, rank: int, stream: Stream) -> None:
        self._of = (node, rank, stream)
        self.marks = Marks()
        self._rest = b""
        self._end = 0
        self._is_cut = False

    @property
    def known_missing(self) -> int:
        """Bytes that the agent has told of, but that were not read."""
        return max(0, self.marks.size - self._end)

    def gap(self, offset: int, arrival: float) -> Iterator[LogLines]:
        """The file goes on at another offset: what stood before is no beginning of what comes."""
        yield from self.close(arrival)
        self._end = offset

    def feed(self, offset: int, data: bytes, arrival: float) -> Iterator[LogLines]:
        """Take bytes that begin at `offset`; yield the lines they complete."""
        start = self._end - len(self._rest)
        buffer = self._rest + data
        self._end = offset + len(data)
        whole = buffer.rfind(b"\n") + 1
        self._rest = buffer[whole:]
        first = 0
        while first < whole:
            time, until = self._same_time(buffer, start, first, whole)
            yield from self._lines(buffer[first : until - 1], arrival if time is None else time)
            first = until
        while len(self._rest) > MAX_LINE_BYTES:
            at = _cut(self._rest, 0)
            piece, self._rest = self._rest[:at], self._rest[at:]
            yield self._as_lines(piece, self._time_at(self._end - len(self._rest), arrival), is_cut=True)

    def close(self, arrival: float) -> Iterator[LogLines]:
        """Yield what stands after the last newline."""
        if self._rest:
            rest, self._rest = self._rest, b""
            yield from self._lines(rest, self._time_at(self._end, arrival))

    def _same_time(self, buffer: bytes, start: int, first: int, whole: int) -> tuple[float | None, int]:
        """When the line that begins at `first` was written, and where the lines end that were complete by then."""
        end = buffer.index(b"\n", first) + 1
        mark = self.marks.covering(start + end)
        if mark is None:
            return None, whole
        size, time = mark
        return time, max(end, buffer.rfind(b"\n", first, min(whole, size - start)) + 1)

    def _time_at(self, end: int, arrival: float) -> float:
        mark = self.marks.covering(end)
        return arrival if mark is None else mark[1]

    def _lines(self, lines: bytes, time: float) -> Iterator[LogLines]:
        if self._is_cut and b"\n" in lines:  # the last piece of a long line is no piece of what follows
            piece, _, lines = lines.partition(b"\n")
            yield from self._lines(piece, time)
        if len(lines) <= MAX_LINE_BYTES:
            yield self._as_lines(lines, time, is_cut=False)
            return
        for too_long, some in groupby(lines.split(b"\n"), lambda line: len(line) > MAX_LINE_BYTES):
            if too_long:
                for line in some:
                    yield from self._pieces(line, time)
            else:
                yield self._as_lines(b"\n".join(some), time, is_cut=False)

    def _pieces(self, line: bytes, time: float) -> Iterator[LogLines]:
        first = 0
        while first < len(line):
            until = _cut(line, first)
            yield self._as_lines(line[first:until], time, is_cut=until < len(line))
            first = until

    def _as_lines(self, lines: bytes, time: float, *, is_cut: bool) -> LogLines:
        node, rank, stream = self._of
        goes_on, self._is_cut = self._is_cut, is_cut
        text = lines.replace(b"\r\n", b"\n").removesuffix(b"\r").decode("utf-8", "replace")
        return LogLines(time, node, rank, stream, text, goes_on)


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

    def feed(self, name: str, offset: int, data: bytes, arrival: float, *, correction_s: float = 0.0) -> list[LogLines]:
        """Take a chunk of the folder's file `name`, to whose times correction_s is added; return the lines it completes."""
        if name == OFFSETS:
            for mark in self._records(name, data, {"time", "size"}):
                for file, size in mark["size"].items():
                    self._file(file).marks.add(size, mark["time"] + correction_s)
            return []
        if name == EVENTS:
            events = self._records(name, data, {"time", "event", "text"})
            self.events += events
            return [LogLines(event["time"] + correction_s, self.node, None, "event", event["text"]) for event in events]
        return list(self._file(name).feed(offset, data, arrival))

    def gap(self, name: str, offset: int, arrival: float) -> list[LogLines]:
        """The folder's file `name` became shorter and goes on at `offset`; return the line that ended there."""
        if name.endswith(".jsonl"):
            self._rest.pop(name, None)
            return []
        return list(self._file(name).gap(offset, arrival))

    def marked(self, name: str) -> int:
        """How many bytes of the file are known to have been written, and when."""
        return self._file(name).marks.size

    def close(self, arrival: float) -> list[LogLines]:
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

    def _records(self, name: str, data: bytes, fields: set[str]) -> list[dict[str, Any]]:
        *lines, self._rest[name] = (self._rest.get(name, b"") + data).split(b"\n")
        return [record for record in map(_record, lines) if fields <= record.keys()]


def _record(line: bytes) -> dict[str, Any]:
    """An agent's record; empty for what a full disk, or a program with a hand in the folder, has made of one."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def in_order(streams: Iterable[Iterable[LogLines]]) -> Iterator[LogLines]:
    """Merge streams by time; lines of one stream keep their order."""
    return heapq.merge(*(_ascending(stream) for stream in streams), key=lambda lines: lines.time)


def _ascending(lines: Iterable[LogLines]) -> Iterator[LogLines]:
    """A clock that is set back must not move a line before its predecessor."""
    latest = 0.0
    for some in lines:
        latest = max(latest, some.time)
        yield some if some.time == latest else replace(some, time=latest)


def prefix_of(lines: LogLines) -> str:
    """`[node:rank]`, and `[node:-]` for the agent's own."""
    return f"[{lines.node}:{'-' if lines.rank is None else lines.rank}]"


def prefixed(lines: LogLines, prefix: str) -> str:
    """
    The lines, each behind the prefix; a piece of a long line begins with `…`.

    Every printed line begins with orch's own prefix, so one that imitates a prefix has two.
    """
    text = f"…{lines.text}" if lines.goes_on else lines.text
    if not is_printable(text):
        text = "\n".join(printable(line) for line in text.split("\n"))
    return f"{prefix} " + text.replace("\n", f"\n{prefix} ")
