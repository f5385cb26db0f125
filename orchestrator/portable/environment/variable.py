"""A variable that a rank gets, with its origin and its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Origin(str, Enum):
    """The source that decides a variable's value."""

    DISCOVERED = "discovered"
    """Follows from the facts of the nodes."""
    PRESET = "preset"
    """Follows from `network:` in the inventory."""
    NODE = "node"
    """The node's own environment or nccl.conf."""
    INVENTORY = "inventory"
    FLAG = "flag"
    """An option of the command, such as --debug."""
    ORCH = "orch"
    DEFAULT = "default"
    """Set by orch unless the node has it."""


@dataclass(frozen=True)
class Variable:
    """One variable of the ranks of a node. `value` None: discovery leaves it unset, and `reason` has the cause."""

    name: str
    value: str | None
    origin: Origin
    reason: str
    replaces: str = ""
    """The value that it replaces, with that value's origin; empty if it replaces none."""
