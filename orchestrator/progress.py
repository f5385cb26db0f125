"""The progress of work on many nodes, as values; the console shows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, TypeVar

R = TypeVar("R")
MOST_NAMED = 3


class Named(Protocol):
    """A node."""

    @property
    def name(self) -> str: ...


NamedT = TypeVar("NamedT", bound=Named)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far work on many nodes has advanced."""

    work: str
    """A participle, such as `connecting`."""
    total: int
    waiting: int
    """How many nodes there are whose work has not ended."""
    names: tuple[str, ...] = ()
    """Their names, in node order, if there are at most MOST_NAMED."""
    size_bytes: int | None = None
    """The size of the files that each node gets, if it gets any."""
    share: float = 0.0
    """The completed share of the work on all nodes, between 0 and 1."""


OnProgress: TypeAlias = Callable[[Progress], None]


OnShare: TypeAlias = Callable[[float], None]
"""Takes the completed share of the work on one node, between 0 and 1."""


def no_progress(_progress: object) -> None:
    """Ignore the progress."""


class Reporter:
    """
    Reports the progress of work on many nodes: at the beginning, and when the work on a node advances or ends.

    A report takes the same time for any number of nodes: there are several for each of them.
    """

    def __init__(
        self, work: str, nodes: Sequence[str], on_progress: OnProgress, *, size_bytes: int | None = None
    ) -> None:
        """Begin to report on work on these nodes, named by a participle."""
        self._begun = Progress(work, len(nodes), len(nodes), size_bytes=size_bytes)
        self._waiting = dict.fromkeys(nodes, 0.0)
        """The share of each node whose work has not ended."""
        self._shares = 0.0
        """The sum of these shares."""
        self._on_progress = on_progress
        self._lock = threading.Lock()
        if nodes:
            self._report()

    def around(self, work: Callable[[NamedT], R]) -> Callable[[NamedT], R]:
        """The work on one of the nodes, whose end is reported."""

        def reported(node: NamedT) -> R:
            try:
                return work(node)
            finally:
                self.ended(node.name)

        return reported

    def ended(self, node: str) -> None:
        """The work on this node has ended."""
        with self._lock:
            self._shares -= self._waiting.pop(node, 0.0)
            self._report()

    def advanced(self, node: str, share: float) -> None:
        """A share of the work on this node is complete."""
        with self._lock:
            if node in self._waiting:
                self._shares += share - self._waiting[node]
                self._waiting[node] = share
                self._report()

    def _report(self) -> None:
        total, waiting = self._begun.total, len(self._waiting)
        names = tuple(self._waiting) if waiting <= MOST_NAMED else ()
        share = (total - waiting + self._shares) / total
        self._on_progress(replace(self._begun, waiting=waiting, names=names, share=share))
