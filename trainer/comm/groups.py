"""The rounds of a benchmark: which ranks communicate with each other at the same time. Pure; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple, TypeVar

from trainer.comm.config import ALL, NODE, NODE_PAIRS, PAIRS, CommConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Position:
    """The node of a rank, and its number there."""

    node: str
    local_rank: int


@dataclass(frozen=True)
class Round:
    """Groups that run one operation at the same time; no rank is in two of them."""

    kind: str
    op: str
    groups: Tuple[Tuple[int, ...], ...]

    def group_of(self, rank: int) -> Tuple[int, ...]:
        """The group with this rank; () if it has none in this round."""
        return next((group for group in self.groups if rank in group), ())


def rounds(config: CommConfig, positions: Mapping[int, Position]) -> list[Round]:
    """The rounds for the ranks that have a place; one operation after the other for each kind of groups."""
    made: List[Round] = []
    for kind in config.groups:
        sets = _groups(kind, positions)
        once = [Round(kind, op, groups) for op in config.operations(kind) for groups in sets if groups]
        made += once * config.passes
    return made


def _groups(kind: str, positions: Mapping[int, Position]) -> list[Tuple[Tuple[int, ...], ...]]:
    ranks = sorted(positions)
    by_node: Dict[str, List[int]] = {}  # nodes in the order of their first rank
    for rank in ranks:
        by_node.setdefault(positions[rank].node, []).append(rank)
    if kind == ALL:
        return [_whole([ranks])]
    if kind == NODE:
        return [_whole(list(by_node.values()))]
    if kind == PAIRS:
        return [tuple(pairs) for pairs in tournament(ranks)]
    assert kind == NODE_PAIRS, kind
    return [
        tuple(pair for first, second in pairs for pair in _rank_pairs(by_node[first], by_node[second], positions))
        for pairs in tournament(list(by_node))
    ]


def _whole(groups: Sequence[Sequence[int]]) -> Tuple[Tuple[int, ...], ...]:
    """The groups with at least two ranks: one rank alone has nobody to communicate with."""
    return tuple(tuple(group) for group in groups if len(group) > 1)


def _rank_pairs(
    first: Sequence[int], second: Sequence[int], positions: Mapping[int, Position]
) -> list[Tuple[int, int]]:
    """The ranks of two nodes that have the same local rank."""
    partner = {positions[rank].local_rank: rank for rank in second}
    return [(rank, partner[positions[rank].local_rank]) for rank in first if positions[rank].local_rank in partner]


def tournament(players: Sequence[T]) -> list[list[Tuple[T, T]]]:
    """
    Rounds in which each two players meet exactly once, and nobody plays twice in a round (circle method).

    With an odd number of players, a different one pauses in each round.
    """
    circle: List[int] = list(range(len(players) + len(players) % 2))
    made = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        facing = (sorted(pair) for pair in zip(circle[:half], reversed(circle[half:])))
        made.append([(players[first], players[second]) for first, second in facing if second < len(players)])
        circle[1:] = [circle[-1], *circle[1:-1]]
    return made
