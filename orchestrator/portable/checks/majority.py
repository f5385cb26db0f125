"""The comparison of a value between nodes: the majority decides what is normal, and the minority is named."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.portable.names.hostlist import fold

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Difference(Generic[T]):
    """A value that differs between nodes. `majority` is None if no value is more frequent than every other."""

    majority: T | None
    groups: Mapping[T, tuple[str, ...]]
    """The nodes of each value, the most frequent value first."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that differ from the majority; all nodes without a majority."""
        return tuple(node for value, names in self.groups.items() if value != self.majority for node in names)

    def text(self, show: Mapping[T, str] | None = None) -> str:
        """The minority first, as in `2.6.0 on n3, 2.7.1 on the other 15`; `show` has other words for values."""
        shown = [(str(value) if show is None else show[value], names) for value, names in self.groups.items()]
        if self.majority is None:
            return ", ".join(f"{value} on {fold(names)}" for value, names in shown)
        (usual, names), *minority = shown
        rest = fold(names) if len(names) == 1 else f"the other {len(names)}"
        return ", ".join(f"{value} on {fold(nodes)}" for value, nodes in minority) + f"; {usual} on {rest}"


def difference(values: Mapping[str, T]) -> Difference[T] | None:
    """Compare a value by node; None if it is equal on all nodes."""
    groups: dict[T, list[str]] = {}
    for node, value in values.items():
        groups.setdefault(value, []).append(node)
    if len(groups) <= 1:  # equal on all nodes
        return None
    ordered = dict(sorted(((value, tuple(nodes)) for value, nodes in groups.items()), key=lambda item: -len(item[1])))
    first, second = list(ordered.values())[:2]
    return Difference(next(iter(ordered)) if len(first) > len(second) else None, ordered)


def other_nodes(count: int) -> str:
    return f"{count} other node{'s' if count > 1 else ''}"
