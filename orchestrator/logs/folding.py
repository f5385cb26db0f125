"""Fold equal lines that many ranks print at about the same time into one line: `[n[0-15]:*] text`. Pure, but for the clock."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from orchestrator.logs.lines import LogLines, prefix_of
from orchestrator.portable.names.hostlist import fold, fold_last_number

WINDOW_S = 1.0
MAX_LINES = 100_000
"""The most lines in memory; the ranks of a cluster print fewer different lines in a second."""


@dataclass(slots=True)
class Fold:
    """One line, and the ranks that printed it: each of them once."""

    line: LogLines
    """The line as the first of the ranks printed it."""
    number: int
    opened_s: float
    """By time.monotonic()."""
    ranks: dict[str, list[int | None]] = field(default_factory=dict)
    """The ranks of each node; None for lines of the agent, and of a program that starts its ranks itself."""

    @property
    def rank_count(self) -> int:
        """The number of ranks, and of agents, that printed the line."""
        return sum(map(len, self.ranks.values()))

    def prefix(self, ranks_of: Callable[[str], int]) -> str:
        """`[n[0-15]:*]` if all ranks of these nodes, by `ranks_of`, printed the line, else `[n[0-15]:0-3,9]`; `[n0:3]` for one rank."""
        nodes = tuple(self.ranks)
        ranks = sorted(rank for found in self.ranks.values() for rank in found if rank is not None)
        if self.rank_count == 1:
            return prefix_of(self.line)
        if not ranks:
            return f"[{_folded(nodes)}:-]"
        has_all = all(len(found) == ranks_of(node) for node, found in self.ranks.items())
        return f"[{_folded(nodes)}:{'*' if has_all else fold_last_number(map(str, ranks)).strip('[]')}]"


class Folding:
    """
    Folds lines that are equal, of the same stream, and at most WINDOW_S later than the first of them.

    The lines of each rank keep their order: a line joins no fold that is printed before the rank's previous line. So a line is
    never lost, and what a rank printed is the sequence of the folds that name it.
    """

    def __init__(self) -> None:
        self._folds: deque[Fold] = deque()
        """The folds that later lines can still join, in the order of their first lines."""
        self._by_text: dict[tuple[str, str, bool], deque[Fold]] = {}
        self._latest: dict[tuple[str, int | None, str], int] = {}
        """The number of the fold with the last line of each rank's stream."""
        self._count = 0
        self._lines = 0

    def add(self, groups: Iterable[LogLines]) -> Iterator[Fold]:
        """Add lines; yield the folds that no later line can join."""
        for group in groups:
            while self._folds and (group.time > self._folds[0].line.time + WINDOW_S or self._lines >= MAX_LINES):
                yield self._pop()
            for text in group.text.split("\n"):
                self._add(replace(group, text=text))

    def overdue(self) -> Iterator[Fold]:
        """Yield the folds whose first line was added WINDOW_S ago or earlier, for a log that is followed."""
        while self._folds and time.monotonic() >= self._folds[0].opened_s + WINDOW_S:
            yield self._pop()

    def rest(self) -> Iterator[Fold]:
        while self._folds:
            yield self._pop()

    def _add(self, line: LogLines) -> None:
        source = (line.node, line.rank, line.stream)
        same = self._by_text.setdefault((line.stream, line.text, line.is_continuation), deque())
        after = self._latest.get(source, 0)
        index = bisect_right(same, after, key=lambda found: found.number)
        if index < len(same):
            joined = same[index]
        else:
            self._count += 1
            joined = Fold(line, self._count, time.monotonic())
            self._folds.append(joined)
            same.append(joined)
        joined.ranks.setdefault(line.node, []).append(line.rank)
        self._latest[source] = joined.number
        self._lines += 1

    def _pop(self) -> Fold:
        first = self._folds.popleft()
        key = (first.line.stream, first.line.text, first.line.is_continuation)
        self._by_text[key].popleft()
        if not self._by_text[key]:
            del self._by_text[key]
        self._lines -= first.rank_count
        return first


@lru_cache(maxsize=64)
def _folded(nodes: tuple[str, ...]) -> str:
    return fold(nodes)
