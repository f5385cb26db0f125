"""
Find where the last lines of an output file begin, and which of their bytes need not be read.

A progress bar is one line that returns to its beginning for each state, so hours of it are megabytes without a newline. Only its last
state is shown, so only that is read.
"""

from __future__ import annotations

from orchestrator.node.system.files import read_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Tuple

    Starts = Tuple[int, List[Tuple[int, int]]]  # where to begin to read, and the parts to skip from there on, ascending

BLOCK_BYTES = 1 << 16
LEAST_BLOCK_BYTES = 1 << 12  # the first block of a file, which is enough for a few lines
LONG_BYTES = 1 << 16  # a longer line may be a progress bar; at least a block, so that no line within a block is longer


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


def last_lines(path: str, size: int, lines: int, *, most_bytes: int) -> Starts:
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
