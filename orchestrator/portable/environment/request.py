"""The part of a launch on one node, by which its facts are judged and its variables discovered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodeRequest:
    """The part of a launch on one node; `accelerator` and `network` are the inventory's, `env` has the variables of the plan."""

    address: str
    ranks: int = 1
    accelerator: str = "auto"
    network: str = "auto"
    env: Mapping[str, str] = field(default_factory=dict)
    private: frozenset[str] = frozenset()
    """The names in `env` whose values appear in no output."""
    needs_torch: bool | None = False
    """The shared trainer runs on the node; None: the program is not known yet."""
    has_setup: bool = False
    """Setup lines run before the ranks, and may change the variables that the node itself sets."""
