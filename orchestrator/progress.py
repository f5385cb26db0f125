"""The progress of work on many nodes, as values; the console shows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, TypeVar

R = TypeVar("R")


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
    waiting: tuple[str, ...]
    """The nodes whose work has not ended, in node order."""
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
    """Reports the progress of work on many nodes: at the beginning, and when the work on a node advances or ends."""

    def __init__(self, begun: Progress, on_progress: OnProgress) -> None:
        self._begun = begun
        self._waiting = dict.fromkeys(begun.waiting)
        self._shares = dict.fromkeys(begun.waiting, 0.0)
        self._on_progress = on_progress
        self._lock = threading.Lock()
        if begun.waiting:
            on_progress(begun)

    @classmethod
    def of(cls, work: str, nodes: Sequence[str], on_progress: OnProgress, *, size_bytes: int | None = None) -> Reporter:
        """Begin to report on work on these nodes, named by a participle."""
        return cls(Progress(work, len(nodes), tuple(nodes), size_bytes), on_progress)

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
            self._waiting.pop(node, None)
            self._report(node, 1.0)

    def advanced(self, node: str, share: float) -> None:
        """A share of the work on this node is complete."""
        with self._lock:
            self._report(node, share)

    def _report(self, node: str, share: float) -> None:
        self._shares[node] = share
        total = sum(self._shares.values()) / len(self._shares)
        self._on_progress(replace(self._begun, waiting=tuple(self._waiting), share=total))
