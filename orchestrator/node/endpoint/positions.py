"""
Find where to begin to read the output files of ranks: at their last lines, or at the lines of the last seconds.

The times of lines are in offsets.jsonl, which is read backwards, so that the cost does not depend on the length of the log. Times of
files are compared only with each other: the agent's clock may differ from that of the file system.

A progress bar is one line that returns to its beginning for each state, so hours of it are megabytes without a newline. Only its last
state is shown, so only that is read.
"""

from __future__ import annotations

import json
import os
import re
import time

from orchestrator.node.endpoint.report import READ_FIRST, Requested, clock_ahead_s, streams
from orchestrator.node.protocol.operations import LAST_LINES, LINES_SINCE, answers
from orchestrator.node.run.events import OFFSETS
from orchestrator.node.run.run_folder import node_folders, read_agent
from orchestrator.node.system.files import read_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Set, Tuple

    from orchestrator.node.protocol.output import FilesRequest, LastLinesRequest, LinesSinceRequest, PositionsReply

    Starts = Tuple[int, List[Tuple[int, int]]]  # where to begin to read, and the parts to skip from there on, ascending
    Writes = List[Tuple[int, float]]  # size of a file, and when it had this size
    Record = Tuple[int, float, Dict[str, int]]  # the offset in the index, the time, and the sizes of files

BLOCK_BYTES = 1 << 16
LEAST_BLOCK_BYTES = 1 << 12  # the first block of a file, which is enough for a few lines
LONG_BYTES = 1 << 16  # a longer line may be a progress bar; at least a block, so that no line within a block is longer
SEARCH_BYTES = 1 << 28  # of all files, for their last lines
MOST_LINE_BYTES = 1 << 20  # as of a line in the controller, which cuts longer ones
RECENT_BYTES = 1 << 20  # of the index: an hour or more
RECENTS_BYTES = 1 << 25  # of the indexes of all nodes in a folder that they share
WRITES_LIMIT = 1 << 17  # of all files of a reply, so that its header stays small
TICKS_S = 1.0  # some intervals in which the agent records the sizes of all files


@answers(LAST_LINES)
def last_lines(request: LastLinesRequest, _payload: bytes) -> Tuple[PositionsReply, bytes]:
    """The offset of the last `lines` lines of each file, what to skip from there on, and the writes beyond it."""
    reply = _empty_reply()
    folders = node_folders(request)
    recent_bytes = min(RECENT_BYTES, RECENTS_BYTES // max(1, len(folders)))
    outputs = {node: _outputs(request, node, folder) for node, folder in folders}
    most_bytes = max(SEARCH_BYTES // max(1, sum(map(len, outputs.values()))), LONG_BYTES * (request["lines"] + 1))
    for node, folder in folders:
        sizes = outputs[node]
        index = os.path.join(folder, OFFSETS)
        index_size = _whole_records(index)
        starts: Dict[str, int] = {}
        for name, size in sizes.items():
            starts[name], skipped = starts_of_last_lines(
                os.path.join(folder, name), size, request["lines"], most_bytes=most_bytes
            )
            if skipped:
                reply["skipped"][f"{node}/{name}"] = skipped
        limit = max(1, WRITES_LIMIT // max(1, len(folders) * len(sizes)))
        for name, newest_first in _writes_beyond(folder, starts, sizes, index_size, recent_bytes=recent_bytes).items():
            step = 1 + len(newest_first) // limit
            reply["written"][f"{node}/{name}"] = newest_first[::step][::-1]
        reply["offsets"].update({f"{node}/{name}": start for name, start in starts.items()})
        reply["offsets"][f"{node}/{OFFSETS}"] = index_size
        reply["clocks_ahead_s"][node] = clock_ahead_s(read_agent(folder))
    return reply, b""


@answers(LINES_SINCE)
def lines_since(request: LinesSinceRequest, _payload: bytes) -> Tuple[PositionsReply, bytes]:
    """The offset of the lines of the last `since_s` seconds in each file, and the offset of their times in the index."""
    reply = _empty_reply()
    for node, folder in node_folders(request):
        sizes = _outputs(request, node, folder)
        ahead_s = clock_ahead_s(read_agent(folder))
        now = time.time() if ahead_s is None else ahead_s + time.monotonic()
        starts, index_start = _written_since(folder, sizes, now - request["since_s"])
        reply["offsets"].update({f"{node}/{name}": start for name, start in starts.items()})
        reply["offsets"][f"{node}/{OFFSETS}"] = index_start
        reply["clocks_ahead_s"][node] = ahead_s
    return reply, b""


def _empty_reply() -> PositionsReply:
    return {"offsets": {}, "skipped": {}, "written": {}, "clocks_ahead_s": {}}


def _outputs(request: FilesRequest, node: str, folder: str) -> Dict[str, int]:
    """Name and size of each requested output file."""
    requested = Requested(request["outputs"])
    return {name: size for name, size in streams(folder) if name not in READ_FIRST and requested(node, name)}


def _writes_beyond(
    folder: str, starts: Dict[str, int], sizes: Dict[str, int], index_size: int, *, recent_bytes: int
) -> Dict[str, Writes]:
    """The writes of each file beyond its start, the newest first; of a file without recent records, its last change."""
    found: Dict[str, Writes] = {name: [] for name in starts}
    open_files = {name for name, start in starts.items() if start < sizes[name]}
    for begin, records in _backwards(os.path.join(folder, OFFSETS), index_size, open_files):
        for _, moment, recorded in records:
            for name in [name for name in open_files if name in recorded]:
                if recorded[name] <= starts[name]:
                    open_files.remove(name)
                else:
                    found[name].append((recorded[name], moment))
        if index_size - begin > recent_bytes:
            unrecorded = [name for name in open_files if not found[name]]
            shift_s = _clock_shift(folder, index_size) if unrecorded else 0.0
            for name in unrecorded:
                open_files.remove(name)
                found[name].append((sizes[name], _changed(folder, name) + shift_s))
        if not open_files:
            break
    return found


def _written_since(folder: str, sizes: Dict[str, int], earliest: float) -> Tuple[Dict[str, int], int]:
    """The offset of the first line of each file that ended at `earliest` or later, and of the index's first record since."""
    index = os.path.join(folder, OFFSETS)
    index_start = index_size = _whole_records(index)
    recorded_s = _changed(folder, OFFSETS) - TICKS_S if index_size else 0.0
    recorded_files = {name for name in sizes if _changed(folder, name) < recorded_s}  # with all their bytes
    recent_files: Set[str] = set()
    open_files, starts = set(sizes), dict.fromkeys(sizes, 0)
    for _, records in _backwards(index, index_size, open_files):
        for offset, moment, recorded in records:
            if moment >= earliest:
                index_start = offset
                recent_files.update(recorded)
                continue
            for name in sorted(open_files):
                if name in recorded:
                    open_files.remove(name)
                    starts[name] = _state_start(os.path.join(folder, name), min(recorded[name], sizes[name]))
                elif name in recorded_files and name not in recent_files:
                    open_files.remove(name)
                    starts[name] = _state_start(os.path.join(folder, name), sizes[name])
        if not open_files:
            break
    return starts, index_start


def _state_start(path: str, size: int) -> int:
    """The offset of the line that contains the byte before `size`; of the last state if the line is a long progress bar."""
    start, skipped = starts_of_last_lines(path, size, 0, most_bytes=MOST_LINE_BYTES)
    return skipped[0][1] if skipped else start


def _changed(folder: str, name: str) -> float:
    return os.lstat(os.path.join(folder, name)).st_mtime


def _clock_shift(folder: str, index_size: int) -> float:
    """The agent's clock minus that of the file system, which may be a server's."""
    index, begin = os.path.join(folder, OFFSETS), max(0, index_size - BLOCK_BYTES)
    lines = read_at(index, begin, index_size - begin).split(b"\n")
    newest_first = (moment for line in reversed(lines) for _, moment, _ in _parsed(0, line))
    newest = next(newest_first, None)
    return 0.0 if newest is None else newest - _changed(folder, OFFSETS)


def _whole_records(index: str) -> int:
    """The size of the index up to its last newline."""
    try:
        size = os.lstat(index).st_size
    except FileNotFoundError:
        return 0
    return line_start(index, size)


def _backwards(index: str, end: int, names: Set[str]) -> Iterator[Tuple[int, List[Record]]]:
    """The records that mention one of the names, the newest first, block by block, and each block's offset."""
    rest = b""
    for begin, part in blocks(index, end):
        if not names:
            return
        block = part + rest
        first = block.find(b"\n") + 1 if begin else 0
        if begin and not first:
            rest = block
            continue
        rest = block[: max(0, first - 1)]
        mention = re.compile("|".join(map(re.escape, sorted(names))).encode())
        records: List[Record] = []
        while found := mention.search(block, first):
            line = max(first, block.rfind(b"\n", 0, found.start()) + 1)
            first = block.find(b"\n", found.end()) + 1 or len(block) + 1
            records += _parsed(begin + line, block[line : first - 1])
        yield begin, records[::-1]


def _parsed(offset: int, line: bytes) -> List[Record]:
    """The record in a line; none if it is damaged."""
    try:
        record = json.loads(line)
        return [(offset, float(record["time"]), dict(record["size"]))]
    except (ValueError, KeyError, TypeError):
        return []


def blocks(path: str, end: int, begin: int = 0) -> Iterator[Tuple[int, bytes]]:
    """The bytes before `end` in blocks with their offsets, the last block first."""
    block_bytes = LEAST_BLOCK_BYTES
    while end > begin:
        start = max(begin, end - block_bytes)
        yield start, read_at(path, start, end - start)
        end, block_bytes = start, min(2 * block_bytes, BLOCK_BYTES)


def line_start(path: str, size: int) -> int:
    """The offset after the last newline before `size`."""
    return next((begin + block.rindex(b"\n") + 1 for begin, block in blocks(path, size) if b"\n" in block), 0)


def starts_of_last_lines(path: str, size: int, lines: int, *, most_bytes: int) -> Starts:
    """
    The start of the last `lines` whole lines before `size`; what follows the last newline is not counted.

    If they are longer than `most_bytes` together, it is the start of fewer lines, or within a line.
    """
    least = max(0, size - most_bytes)
    remaining, line_end = lines + 1, size
    skipped: List[Tuple[int, int]] = []  # from the last one on
    for begin, block in blocks(path, size, least):
        newlines = block.count(b"\n")
        if not newlines:
            continue
        skipped += _earlier_states(path, begin + block.rindex(b"\n") + 1, line_end)
        if newlines >= remaining:
            at = len(block)
            for _ in range(remaining):
                at = block.rindex(b"\n", 0, at)
            return begin + at + 1, skipped[::-1]
        remaining -= newlines
        line_end = begin + block.index(b"\n")
    states = _earlier_states(path, least, line_end)
    if least == 0:
        return 0, (skipped + states)[::-1]
    if states:
        return states[0][1], skipped[::-1]
    return (line_end + 1 if line_end < size else max(least, size - LONG_BYTES)), skipped[::-1]


def _earlier_states(path: str, begin: int, end: int) -> List[Tuple[int, int]]:
    """The part of a line that is not shown if the line is a long progress bar: all but its last state that is not blank."""
    start = end - LONG_BYTES
    if start <= begin:
        return []
    found = read_at(path, start, LONG_BYTES).rstrip().rfind(b"\r")
    return [] if found < 0 else [(begin, start + found + 1)]
