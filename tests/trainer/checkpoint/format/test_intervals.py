"""Intervals of elements: who writes which, and from which shards one is read. Pure."""

from __future__ import annotations

import random

import pytest

from trainer.checkpoint.format.intervals import Interval, cover_problem, overlaps, split_evenly
from trainer.parallel.fsdp import first_row


@pytest.mark.parametrize(
    ("sizes", "ranks", "expected"),
    [
        ([4], 2, [[(0, 0, 2), (1, 2, 4)]]),
        ([3, 3], 2, [[(0, 0, 3)], [(1, 0, 3)]]),
        ([5, 1], 2, [[(0, 0, 3), (1, 3, 5)], [(1, 0, 1)]]),
        ([1], 3, [[(2, 0, 1)]]),
        ([0, 2, 0], 1, [[], [(0, 0, 2)], []]),
        ([], 4, []),
    ],
)
def test_tensors_laid_end_to_end_are_split_into_equal_parts(
    sizes: list[int], ranks: int, expected: list[list[tuple[int, int, int]]]
) -> None:
    assert split_evenly(sizes, ranks) == expected


def test_random_tensors_split_over_random_ranks_are_read_as_they_were_by_any_other_number_of_ranks() -> None:
    draw = random.Random(15)
    for _ in range(300):
        sizes = [draw.choice((0, 1, 2, 7, 64, 1000)) for _ in range(draw.randrange(1, 9))]
        ranks = draw.randrange(1, 10)
        split = split_evenly(sizes, ranks)
        loads = [
            sum(part.stop - part.start for parts in split for part in parts if part.rank == n) for n in range(ranks)
        ]
        assert max(loads) - min(loads) <= 1
        for size, intervals in zip(sizes, split, strict=True):
            assert cover_problem(intervals, size) == ""
            shards = {part.rank: range(part.start, part.stop) for part in intervals}
            draw.shuffle(intervals)
            start, stop = sorted(draw.choices(range(size + 1), k=2))
            read = [-1] * (stop - start)
            for overlap in overlaps(intervals, start, stop):
                part = shards[overlap.rank][overlap.source :][: overlap.size]
                read[overlap.target : overlap.target + overlap.size] = part
            assert read == list(range(start, stop))


@pytest.mark.parametrize(
    ("intervals", "problem"),
    [
        ([(0, 0, 4), (1, 4, 6)], ""),
        ([(1, 4, 6), (0, 0, 4)], ""),
        ([(0, 0, 4)], "4 of 6 elements are in the shards"),
        ([(0, 0, 4), (1, 4, 7)], "7 of 6 elements are in the shards"),
        ([(0, 0, 3), (1, 4, 6)], "elements from 3 on are in no shard"),
        ([(0, 0, 5), (1, 4, 6)], "elements from 4 on are in two shards"),
        ([(0, 0, 6), (1, 0, 6)], "elements from 0 on are in two shards"),
        ([(0, 0, 6), (1, 6, 6)], "elements from 6 on are in two shards"),
        ([], "0 of 6 elements are in the shards"),
    ],
)
def test_elements_in_no_shard_or_in_two_are_found(intervals: list[tuple[int, int, int]], problem: str) -> None:
    assert cover_problem([Interval(*part) for part in intervals], 6) == problem


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9])
def test_first_rows_are_those_of_torch_chunk(rows: int) -> None:
    torch = pytest.importorskip("torch")
    for ranks in (1, 2, 3, 4, 8):
        chunks = [chunk.tolist() for chunk in torch.arange(rows).chunk(ranks)]
        starts = [first_row(rows, ranks, rank) for rank in range(ranks)]
        assert starts == [chunk[0] for chunk in chunks] + [rows] * (ranks - len(chunks))
