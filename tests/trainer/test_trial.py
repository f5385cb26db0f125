"""The verdict on a repeated step, by the values of all ranks; tests/train/test_trial.py injects faults."""

from __future__ import annotations

import math

import pytest

from trainer.errors import NumbersError, Wrong
from trainer.trial import Verdict, distance, judge

NAN, GOOD = [math.nan, 1.0], [2.0, 1.0]


@pytest.mark.parametrize(
    ("here", "there", "shift", "verdict"),
    [
        ([GOOD, NAN], [NAN, GOOD], 1, Verdict(batches=(1,))),  # rank 0 has computed with the batch of rank 1
        ([GOOD, NAN], [GOOD, NAN], 1, Verdict((1,))),
        ([GOOD, NAN], [GOOD, GOOD], 1, Verdict((1,))),  # every second time
        ([GOOD, GOOD], [GOOD, NAN], 1, Verdict((1,))),
        ([GOOD, GOOD], [GOOD, GOOD], 1, Verdict((1,), is_repeated=False)),
        ([NAN, NAN], [NAN, NAN], 1, Verdict(batches=(0, 1))),
        ([GOOD, GOOD, NAN, GOOD], [NAN, GOOD, GOOD, GOOD], 2, Verdict(batches=(2,))),
        ([NAN, NAN, GOOD, GOOD], [NAN, NAN, GOOD, GOOD], 1, Verdict((0, 1))),  # the batch of rank 1 fails on both
        ([NAN], [], 1, Verdict(batches=(0,))),
        ([GOOD], [], 1, Verdict((0,), is_repeated=False)),
    ],
)
def test_batch_that_fails_twice_is_at_fault_and_else_the_rank_that_fails_alone(
    here: list[list[float]], there: list[list[float]], shift: int, verdict: Verdict
) -> None:
    assert judge(here, there, shift, NumbersError("rank 1: loss is nan at step 7", 7, ranks=[1])) == verdict


@pytest.mark.parametrize(("of", "ranks"), [("gradient", [0, 1]), ("norm", [0, 1])])
def test_failure_of_all_ranks_that_is_not_repeated_names_none(of: Wrong, ranks: list[int]) -> None:
    error = NumbersError("all ranks: gradient norm is not finite at step 7", 7, ranks=ranks, of=of)
    assert judge([GOOD, GOOD], [GOOD, GOOD], 1, error) == Verdict(is_repeated=False)


@pytest.mark.parametrize(
    ("nodes", "least"), [("ab", 1), ("aabb", 2), ("abab", 1), ("aabbcc", 2), ("aa", 1), ("aab", 1), ("a", 1)]
)
def test_second_rank_is_on_another_node_if_each_has_one(nodes: str, least: int) -> None:
    assert distance(nodes) == least
