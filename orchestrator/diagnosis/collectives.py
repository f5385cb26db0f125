"""Compare the timeouts of a collective operation on several ranks: the ranks that are behind, and calls that differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.diagnosis.evidence import Hit
from orchestrator.portable.names.hostlist import fold

MOST_IN_FLIGHT = 64
"""Operations by which ranks differ that have only put some more into their queues than others."""
_OF_PAIRS = frozenset({"SEND", "RECV", "UNKNOWN", "COALESCED"})
_OF_ANY_SIZE = frozenset({"ALLTOALL", "ALLTOALL_BASE", "GATHER", "SCATTER", *_OF_PAIRS})


@dataclass(frozen=True)
class Call:
    """The first operation that timed out on a rank."""

    number: int
    operation: str
    size: str
    """The number of elements; empty if the text has none, or if it may differ between ranks."""

    @property
    def text(self) -> str:
        return f"{self.operation} of {self.size} elements" if self.size else self.operation


def calls_of(hits: Sequence[Hit]) -> dict[int, Call]:
    """Rank -> its call with the lowest number."""
    calls: dict[int, Call] = {}
    for hit in hits:
        if hit.rank is None or "seq" not in hit.values:
            continue
        number, operation = int(hit.values["seq"]), hit.values.get("op", "")
        if hit.rank not in calls or number < calls[hit.rank].number:
            size = "" if operation in _OF_ANY_SIZE else hit.values.get("size", "")
            calls[hit.rank] = Call(number, operation, size)
    return calls


def behind(calls: Mapping[int, Call]) -> tuple[tuple[int, ...], int]:
    """The ranks below the widest gap between the numbers, and that gap; none if these are most of the ranks."""
    numbers = sorted({call.number for call in calls.values()})
    gap, limit = max(((high - low, high) for low, high in pairwise(numbers)), default=(0, 0))
    ranks = tuple(sorted(rank for rank, call in calls.items() if call.number < limit))
    return (ranks, gap) if 2 * len(ranks) <= len(calls) else ((), gap)


def different_calls(calls: Mapping[int, Call]) -> str:
    """The calls of the ranks, if they are at the same number with different operations or sizes; else empty."""
    called: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        called.setdefault(call.text, []).append(rank)
    is_comparable = len({call.number for call in calls.values()}) == 1
    if len(called) == 1 or not is_comparable or any(call.operation in _OF_PAIRS for call in calls.values()):
        return ""
    return ", ".join(f"rank {fold(map(str, ranks))} {text}" for text, ranks in called.items())


def is_entered_by_all(calls: Mapping[int, Call], world_size: int | None) -> bool:
    """True if all ranks, as far as they are known, timed out in the same call."""
    ranks = sorted(calls)
    is_complete = len(ranks) > 1 and ranks == list(range(world_size or len(ranks)))
    return is_complete and len(set(calls.values())) == 1
