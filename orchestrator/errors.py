"""
Every error a user can meet, with its exit code and the next step to take.

    OrchError
     +- UsageError (2)        what was typed or written is wrong; nothing was started
     |   +- InventoryError    the inventory file, with file, line and field
     |   +- RunNotFound       no run of that name on this machine
     +- LaunchError (4)       the launch failed; what had started was stopped again, or is named
     |   +- NodeError         one node: unreachable, no Python, unwritable folder, key refused
     |   +- NodesError        several nodes, every one of them named
     +- RunLost (5)           the state of a run cannot be known
"""

from __future__ import annotations

from collections.abc import Sequence


class OrchError(Exception):
    """What went wrong in one sentence; `hint` is the next step, or empty."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(OrchError):
    """The request itself is wrong: arguments, configuration, a program that does not exist."""

    exit_code = 2


class InventoryError(UsageError):
    """The inventory is wrong; the message starts with `file:line: field:` as far as they are known."""


class RunNotFound(UsageError):
    """No run, or more than one, goes by the given name."""


class LaunchError(OrchError):
    """The launch failed as a whole."""

    exit_code = 4


class NodeError(LaunchError):
    """One node failed; `node` is its inventory name."""

    def __init__(self, node: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.node = node


class NodesError(LaunchError):
    """Some of many nodes failed; every failure is kept, in node order."""

    def __init__(self, failures: Sequence[NodeError], total: int) -> None:
        lines = [f"{len(failures)} of {total} nodes failed"]
        lines += [f"  {f.node}: {f}" + (f"  ({f.hint})" if f.hint else "") for f in failures]
        super().__init__("\n".join(lines))
        self.failures = tuple(failures)


class RunLost(OrchError):
    """Nobody knows what became of the run."""

    exit_code = 5
