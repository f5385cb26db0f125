"""Parse raw chunks of many files into lines, and merge them by time. Pure: bytes and offsets in, LogLines out."""

from __future__ import annotations

import heapq
import json
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from orchestrator.logs.printable import is_printable, printable
from orchestrator.node.run.events import EVENTS, OFFSETS, Kind, State
from orchestrator.node.run.run_folder import output_stem

Stream = Literal["out", "err", "event", "batch"]
MAX_LINE_BYTES = 1 << 20
"""A longer line is cut into pieces of this size, so that an endless line cannot fill the memory."""
MAX_WRITE_TIMES = 8192
"""The most write times in memory of the unread part of one file, those of half an hour. If there are more, every second one is dropped."""
BAR_EVERY_S = 30.0
"""A progress bar, which is one line until it is complete, is shown in its newest state if its file had no line for this time, by default."""
MIN_READ_TIMES = 64
"""The write times of bytes that were read are dropped once they are so many, because dropping copies all others."""


@dataclass(frozen=True, slots=True)
class LogLines:
    """
    One or many consecutive lines that one rank wrote at one time, as far as is known.

    They are kept together because a merged log becomes slow if each line is handled separately. `rank` is None for lines of
    the agent, and of a program that starts its ranks itself; `time` is seconds since the epoch.
    """

    time: float
    node: str
    rank: int | None
    stream: Stream
    text: str
    """The lines, separated by newlines."""
    is_continuation: bool = False
    """This single line continues the previous line of the same rank and stream, which was cut because it was too long."""
    is_routine: bool = False
    """An event of every run that succeeds: a start, an exit with code 0, an end without failure."""
    is_unfinished: bool = False
    """The newest state of a progress bar: a part of a line that comes later."""

    @property
    def count(self) -> int:
        return self.text.count("\n") + 1

    def last(self, count: int) -> LogLines:
        return replace(self, text="\n".join(self.text.split("\n")[-count:]))

    def to_json(self) -> Iterator[dict[str, Any]]:
        """One object per line: time, node, rank, stream, text, `goes_on` if it continues the previous line, `unfinished` if it is not whole."""
        suffix = {"goes_on": True} if self.is_continuation else {}
        suffix |= {"unfinished": True} if self.is_unfinished else {}
        prefix = {"time": self.time, "node": self.node, "rank": self.rank, "stream": self.stream}
        return ({**prefix, "text": text, **suffix} for text in self.text.split("\n"))


def last(lines: Iterable[LogLines], count: int) -> deque[LogLines]:
    """The last `count` lines; memory is bounded by these."""
    kept: deque[LogLines] = deque()
    held = 0
    for group in lines:
        kept.append(group)
        held += group.count
        while kept and held - kept[0].count >= count:
            held -= kept.popleft().count
    if held > count:
        kept[0] = kept[0].last(kept[0].count - (held - count))
    return kept


class WriteTimes:
    """An agent's records of the size of a file over time, for the bytes that are still to be read."""

    def __init__(self) -> None:
        self.size = 0
        """The largest recorded size."""
        self.limit = MAX_WRITE_TIMES
        """The number of records that are kept."""
        self._sizes = array("Q")
        self._times = array("d")
        self._first = 0
        """The index of the first record that may still be needed."""

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, size: int, time: float) -> None:
        """The file had `size` bytes at `time`."""
        if self._first >= MIN_READ_TIMES and 2 * self._first >= len(self._sizes):
            self._drop(1)
        if len(self._sizes) >= self.limit:
            self._drop(2)
        self._sizes.append(size)
        self._times.append(time)
        self.size = max(self.size, size)

    def covering(self, end: int) -> tuple[int, float] | None:
        """Size and time of the first record that covers the byte before `end`; earlier records are dropped."""
        while self._first < len(self._sizes) and self._sizes[self._first] < end:
            self._first += 1
        return (self._sizes[self._first], self._times[self._first]) if self._first < len(self._sizes) else None

    def _drop(self, step: int) -> None:
        """Drop the records of bytes that were read, and keep every `step`-th of the others."""
        first = self._first + (len(self._sizes) - self._first - 1) % step  # the last record is kept
        self._sizes = self._sizes[first::step]
        self._times = self._times[first::step]
        self._first = 0


class FileLines:
    """
    The lines of one rank's file, fed in order.

    The agent's records give the time at which a line was written, within the interval of the agent. Bytes beyond the last
    record get the time of their arrival.
    """

    def __init__(self, node: str, rank: int | None, stream: Stream) -> None:
        self._origin = (node, rank, stream)
        self.write_times = WriteTimes()
        self.longest = MAX_LINE_BYTES
        """An unfinished line that is longer is cut."""
        self._rest = b""
        """The bytes after the last newline."""
        self._end = 0
        """The offset up to which the file was fed."""
        self._is_cut = False
        """The last line that was yielded is a piece of a longer line."""
        self._shown_at = math.inf
        """The time of arrival of the last line, of the last state of a progress bar, or of the first bytes."""
        self._bar_end = 0
        """The offset up to which the file was fed when the state of a progress bar was yielded last."""

    @property
    def missing_bytes(self) -> int:
        """The number of bytes that the agent has recorded and that were not read."""
        return max(0, self.write_times.size - self._end)

    def begin_at(self, offset: int, written: Iterable[tuple[int, float]]) -> None:
        """Begin with the line that begins at `offset`; `written` are sizes beyond it, ascending, and their times."""
        self._end = offset
        for size, time in written:
            self.write_times.add(size, time)

    def gap(self, offset: int, arrival: float) -> Iterator[LogLines]:
        """The file continues at another offset: yield the unfinished line, which the next bytes do not continue."""
        yield from self.close(arrival)
        self._end = offset

    def feed(self, offset: int, data: bytes, arrival: float) -> Iterator[LogLines]:
        """Add bytes that begin at `offset`; yield the lines that they complete."""
        start = self._end - len(self._rest)
        buffer = self._rest + data
        self._end = offset + len(data)
        whole = buffer.rfind(b"\n") + 1
        self._rest = buffer[whole:]
        self._shown_at = arrival if whole else min(self._shown_at, arrival)
        first = 0
        while first < whole:
            time, until = self._same_time(buffer, start, first, whole)
            yield from self._lines(buffer[first : until - 1], arrival if time is None else time)
            first = until
        while len(self._rest) > self.longest:
            cut = _cut(self._rest, 0, self.longest)
            piece = self._rest[:cut]
            self._rest = self._rest[cut:]
            yield self._as_lines(piece, self._time_at(self._end - len(self._rest), arrival), is_cut=True)

    def bar(self, now: float, every_s: float = BAR_EVERY_S) -> Iterator[LogLines]:
        """Yield the newest state of a progress bar, if it is new and nothing of this file was yielded for `every_s`."""
        if now - self._shown_at < every_s or self._bar_end == self._end or b"\r" not in self._rest:
            return
        self._shown_at, self._bar_end = now, self._end
        node, rank, stream = self._origin
        states = self._rest.rstrip().rsplit(b"\r", 1)
        yield LogLines(now, node, rank, stream, states[-1].decode("utf-8", "replace"), is_unfinished=True)

    def close(self, arrival: float) -> Iterator[LogLines]:
        """Yield the bytes after the last newline as a line."""
        if self._rest:
            rest = self._rest
            self._rest = b""
            yield from self._lines(rest, self._time_at(self._end, arrival))

    def _same_time(self, buffer: bytes, start: int, first: int, whole: int) -> tuple[float | None, int]:
        """The time at which the line that begins at `first` was written, and the end of the lines complete at that time."""
        end = buffer.index(b"\n", first) + 1
        record = self.write_times.covering(start + end)
        if record is None:
            return None, whole
        size, time = record
        return time, max(end, buffer.rfind(b"\n", first, min(whole, size - start)) + 1)

    def _time_at(self, end: int, arrival: float) -> float:
        record = self.write_times.covering(end)
        return arrival if record is None else record[1]

    def _lines(self, lines: bytes, time: float) -> Iterator[LogLines]:
        if self._is_cut and b"\n" in lines:  # the last piece of a long line is not joined with the next line
            piece, _, lines = lines.partition(b"\n")
            yield from self._lines(piece, time)
        if len(lines) <= MAX_LINE_BYTES:
            yield self._as_lines(lines, time, is_cut=False)
            return
        for too_long, group in groupby(lines.split(b"\n"), lambda line: len(line) > MAX_LINE_BYTES):
            if too_long:
                for line in group:
                    yield from self._pieces(line, time)
            else:
                yield self._as_lines(b"\n".join(group), time, is_cut=False)

    def _pieces(self, line: bytes, time: float) -> Iterator[LogLines]:
        first = 0
        while first < len(line):
            until = _cut(line, first, MAX_LINE_BYTES)
            yield self._as_lines(line[first:until], time, is_cut=until < len(line))
            first = until

    def _as_lines(self, lines: bytes, time: float, *, is_cut: bool) -> LogLines:
        node, rank, stream = self._origin
        is_continuation = self._is_cut
        self._is_cut = is_cut
        text = lines.replace(b"\r\n", b"\n").removesuffix(b"\r").decode("utf-8", "replace")
        return LogLines(time, node, rank, stream, text, is_continuation)


def _cut(line: bytes, first: int, size: int) -> int:
    """The end of a piece that begins at `first`: at most `size` bytes later, and never within a UTF-8 character."""
    until = first + size
    if until >= len(line):
        return len(line)
    return next((index for index in range(until, until - 4, -1) if line[index] & 0xC0 != 0x80), until)  # noqa: PLR2004  a continuation byte


class NodeLines:
    """The lines of one node folder: the output of the ranks, and the agent's events as lines without a rank."""

    def __init__(self, node: str, wants: Callable[[int | None, Stream], bool] = lambda _rank, _stream: True) -> None:
        """Nothing was read yet; `wants` is True for the output files that are read: the times of other output are not kept."""
        self.node = node
        self._wants = wants
        self.events: list[dict[str, Any]] = []
        self._files: dict[str, FileLines] = {}
        self._limits = MAX_WRITE_TIMES, MAX_LINE_BYTES
        """The number of write times, and of bytes of an unfinished line, that are kept of each file."""
        self.indexed_s = -math.inf
        """The time of the last record of write times that was fed."""
        self._rest: dict[str, bytes] = {}
        """File of records -> the bytes after its last newline."""

    def feed(self, name: str, offset: int, data: bytes, arrival: float, *, correction_s: float = 0.0) -> list[LogLines]:
        """Add a chunk of the file `name` and return the lines that it completes; correction_s is added to recorded times."""
        if name == OFFSETS:
            for record in self._records(name, data, {"time", "size"}):
                self.indexed_s = record["time"] + correction_s
                for file, size in record["size"].items():
                    if self._wants(*_origin(file)):
                        self._file(file).write_times.add(size, record["time"] + correction_s)
            return []
        if name == EVENTS:
            events = self._records(name, data, {"time", "event", "text"})
            self.events += events
            timed = ((event["time"] + correction_s, event) for event in events)
            return [
                LogLines(at, self.node, None, "event", each["text"], is_routine=_is_routine(each)) for at, each in timed
            ]
        return list(self._file(name).feed(offset, data, arrival))

    def begin_at(self, name: str, offset: int, written: Iterable[tuple[int, float]]) -> None:
        """Begin to read an output file at an offset instead of 0."""
        self._file(name).begin_at(offset, written)

    def gap(self, name: str, offset: int, arrival: float) -> list[LogLines]:
        """The file `name` became shorter and continues at `offset`; return the line that ended there."""
        if name.endswith(".jsonl"):
            self._rest.pop(name, None)
            return []
        return list(self._file(name).gap(offset, arrival))

    def limit(self, write_times: int, line_bytes: int) -> None:
        """Keep at most that many write times of each file, and that many bytes of an unfinished line."""
        self._limits = write_times, line_bytes
        for file in self._files.values():
            file.write_times.limit, file.longest = self._limits

    def indexed_bytes(self, name: str) -> int:
        """The number of bytes of the file whose write times are known."""
        return self._file(name).write_times.size

    def close(self, arrival: float) -> list[LogLines]:
        """The last lines, which no newline ends."""
        return [line for file in self._files.values() for line in file.close(arrival)]

    def bars(self, now: float, every_s: float = BAR_EVERY_S) -> list[LogLines]:
        """The newest states of progress bars whose files had no line for some time."""
        return [line for file in self._files.values() for line in file.bar(now, every_s)]

    @property
    def missing_bytes(self) -> int:
        """The number of bytes that the agent has recorded and that were not read, of all ranks."""
        return sum(file.missing_bytes for file in self._files.values())

    def _file(self, name: str) -> FileLines:
        if name not in self._files:
            self._files[name] = FileLines(self.node, *_origin(name))
            self._files[name].write_times.limit, self._files[name].longest = self._limits
        return self._files[name]

    def _records(self, name: str, data: bytes, fields: set[str]) -> list[dict[str, Any]]:
        buffer = self._rest.get(name, b"") + data
        *lines, rest = buffer.split(b"\n")
        self._rest[name] = rest
        return [record for record in map(_record, lines) if fields <= record.keys()]


def _is_routine(event: dict[str, Any]) -> bool:
    """True for an event of every run without a failure, of a node whose ranks are ended on request, and those that repeat a rank's exit."""
    kind = event["event"]
    if kind == Kind.RANK_EXITED:
        is_ended = event.get("signal") == "SIGTERM" and event["text"].endswith(", after the stop")
        return event.get("code") == 0 or is_ended
    if kind == Kind.AGENT_FINISHED:
        return event.get("state") in (State.DONE, State.STOPPED) or bool(event.get("exit"))
    if kind == Kind.STOPPING:
        return str(event.get("reason")).startswith(("requested by SIGTERM", "rank ", "the program (pid "))
    return kind in (Kind.AGENT_STARTED, Kind.RANK_STARTED)


def _origin(name: str) -> tuple[int | None, Stream]:
    """Rank and stream of an output file, rank-3.err; the rank is None for program.err."""
    stem, _, stream = name.rpartition(".")
    rank = None if stem == output_stem(None) else int(stem.removeprefix("rank-"))
    return rank, "err" if stream == "err" else "out"


def _record(line: bytes) -> dict[str, Any]:
    """A record of the agent; empty if it is damaged, by a full disk or a program that writes into the folder."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def in_order(streams: Iterable[Iterable[LogLines]]) -> Iterator[LogLines]:
    """Merge streams by time; lines of one stream keep their order."""
    return heapq.merge(*(_ascending(stream) for stream in streams), key=lambda lines: lines.time)


def _ascending(lines: Iterable[LogLines]) -> Iterator[LogLines]:
    """Make the times ascend: a clock that is set back must not move a line before its predecessor."""
    latest = 0.0
    for group in lines:
        latest = max(latest, group.time)
        yield group if group.time == latest else replace(group, time=latest)


def prefix_of(lines: LogLines) -> str:
    """`[node:rank]`, and `[node:-]` for lines whose rank is None."""
    return f"[{lines.node}:{'-' if lines.rank is None else lines.rank}]"


def prefixed(lines: LogLines, prefix: str) -> str:
    """
    The lines, each after the prefix; a line that continues the previous one begins with `…`.

    Every printed line begins with this prefix, so a line that imitates a prefix has two.
    """
    text = f"…{lines.text}" if lines.is_continuation else lines.text
    if not is_printable(text):
        text = "\n".join(printable(line) for line in text.split("\n"))
    return f"{prefix} " + text.replace("\n", f"\n{prefix} ")
