"""Rounds: each two players meet exactly once, nobody is in two groups at a time, and odd counts skip nobody."""

from __future__ import annotations

from itertools import combinations

import pytest

from trainer.comm.config import load_config
from trainer.comm.groups import Position, Round, rounds, tournament


@pytest.mark.parametrize("count", range(10))
def test_each_two_players_meet_once_and_nobody_plays_twice_in_a_round(count: int) -> None:
    played = tournament(range(count))
    assert sorted(pair for pairs in played for pair in pairs) == list(combinations(range(count), 2))
    assert all(len({player for pair in pairs for player in pair}) == 2 * len(pairs) for pairs in played)
    assert len(played) <= count


def _positions(*ranks_per_node: int) -> dict[int, Position]:
    positions = [Position(f"n{node}", local) for node, count in enumerate(ranks_per_node) for local in range(count)]
    return dict(enumerate(positions))


def _rounds(groups: str, *ranks_per_node: int, op: str = "broadcast") -> list[Round]:
    return rounds(load_config([f"groups={groups}", f"op={op}"]), _positions(*ranks_per_node))


def test_all_ranks_are_one_group_for_each_operation() -> None:
    made = _rounds("all", 2, 1, op="broadcast,all-reduce")
    assert made == [Round("all", op, ((0, 1, 2),)) for op in ("broadcast", "all-reduce")]


def test_nodes_of_one_rank_have_no_group_of_their_own() -> None:
    assert _rounds("node", 2, 1, 3) == [Round("node", "broadcast", ((0, 1), (3, 4, 5)))]
    assert _rounds("node", 1, 1) == []


def test_pairs_of_nodes_join_equal_local_ranks() -> None:
    made = _rounds("node-pairs", 2, 2, 1)
    assert [round_.groups for round_ in made] == [((2, 4),), ((0, 4),), ((0, 2), (1, 3))]


def test_ranks_that_have_not_come_are_in_no_group() -> None:
    positions = {rank: position for rank, position in _positions(2, 2).items() if rank != 2}
    made = rounds(load_config(["groups=all,node-pairs"]), positions)
    assert [round_.groups for round_ in made] == [((0, 1, 3),), ((1, 3),)]
    assert made[0].group_of(2) == ()
