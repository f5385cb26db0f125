"""Intervals of elements of flattened tensors: which rank writes them, and which shards hold those that a rank reads. Pure."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Sequence


class Interval(NamedTuple):
    """The elements [start, stop) of a flattened tensor, which are in the shard of a rank."""

    rank: int
    start: int
    stop: int


class Overlap(NamedTuple):
    """`size` elements from element `source` of the part in a rank's shard, to element `target` of those to be read."""

    rank: int
    source: int
    target: int
    size: int


def split_evenly(sizes: Sequence[int], ranks: int) -> List[List[Interval]]:
    """
    Split tensors of these sizes, laid end to end, into one equal part per rank.

    Returns:
        For each tensor the intervals of the ranks; the parts of all ranks differ by one element at most.
    """
    total, begin, rank = sum(sizes), 0, 0
    split: List[List[Interval]] = []
    for size in sizes:
        intervals, start = [], 0
        while start < size:
            while total * (rank + 1) // ranks <= begin + start:
                rank += 1
            stop = min(size, total * (rank + 1) // ranks - begin)
            intervals.append(Interval(rank, start, stop))
            start = stop
        split.append(intervals)
        begin += size
    return split


def cover_problem(intervals: Sequence[Interval], size: int) -> str:
    """Return why the intervals do not hold each of `size` elements exactly once, or ""."""
    end = 0
    for interval in sorted(intervals, key=lambda interval: interval.start):
        if interval.start != end or interval.stop <= interval.start:
            count = "no shard" if interval.start > end else "two shards"
            return f"elements from {min(end, interval.start)} on are in {count}"
        end = interval.stop
    return "" if end == size else f"{end} of {size} elements are in the shards"


def overlaps(intervals: Sequence[Interval], start: int, stop: int) -> Iterator[Overlap]:
    """The sources of the elements [start, stop); `intervals` hold each element once."""
    for interval in intervals:
        first, last = max(start, interval.start), min(stop, interval.stop)
        if first < last:
            yield Overlap(interval.rank, first - interval.start, first - start, last - first)
