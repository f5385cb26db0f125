"""Timeouts of a collective operation on several ranks, compared."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.collectives import Call, behind, different_calls, is_entered_by_all


def calls(*numbers: int) -> dict[int, Call]:
    return {rank: Call(number, "ALLREDUCE", "4") for rank, number in enumerate(numbers)}


@pytest.mark.parametrize(
    ("numbers", "ranks", "gap"),
    [
        ((96117, 96119, 96118, 64088), (3,), 32029),
        ((7, 5, 7, 7), (1,), 2),
        ((7, 5), (1,), 2),
        ((100, 100, 100, 105), (), 5),
        ((7, 7, 7), (), 0),
        ((), (), 0),
    ],
)
def test_the_ranks_below_the_widest_gap_are_behind_unless_they_are_most(
    numbers: tuple[int, ...], ranks: tuple[int, ...], gap: int
) -> None:
    assert behind(calls(*numbers)) == (ranks, gap)


def test_calls_at_one_number_are_compared_by_operation_and_size() -> None:
    same = Call(7, "ALLREDUCE", "4")
    assert different_calls({0: same, 1: same}) == ""
    assert different_calls({0: same, 1: Call(7, "ALLREDUCE", "1")}) == (
        "rank 0 ALLREDUCE of 4 elements, rank 1 ALLREDUCE of 1 elements"
    )
    assert different_calls({0: same, 1: same, 2: Call(7, "BROADCAST", "4")}).startswith("rank [0-1] ALLREDUCE")
    assert different_calls({0: same, 1: Call(8, "ALLREDUCE", "1")}) == ""
    assert different_calls({0: Call(7, "SEND", ""), 1: Call(7, "RECV", "")}) == ""
    assert different_calls({}) == ""


def test_a_call_is_entered_by_all_if_no_rank_up_to_the_last_one_is_missing() -> None:
    assert is_entered_by_all(calls(7, 7), None)
    assert not is_entered_by_all(calls(7, 7), 4)
    assert not is_entered_by_all(calls(7, 8), None)
    assert not is_entered_by_all(calls(7), None)
    assert not is_entered_by_all({0: Call(7, "ALLREDUCE", "4"), 2: Call(7, "ALLREDUCE", "4")}, None)
