"""
Every error that a user can meet, with its exit code. Codes 1 (the training failed) and 6 (stopped) are of runs; 3 is reserved.

    OrchError (4)            orch itself could not go on, such as on a full disk
     +- UsageError (2)        what was typed or written is wrong; nothing was started
     |   +- InventoryError    the inventory file, with file, line and field
     |   +- RunNotFound       no run of that name on this machine
     +- LaunchError (4)       the launch failed; what had started was stopped again, or is named
     |   +- NodeError         one node: no Python, unwritable folder
     |   |   +- Unreachable   no connection; NotListening where the node answers that the port is closed
     |   |   +- LoginRefused  retrying cannot help
     |   +- NodesError        several nodes, every one of them named
     +- RunLost (5)           the state of a run cannot be known
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.names.hostlist import fold

MOST_REASONS = 20  # lines of a NodesError; nodes that fail for different reasons need no more for a first look


class OrchError(Exception):
    """The message is the cause in one sentence; `hint` is the next step, or empty."""

    exit_code = 4

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(OrchError):
    """The request itself is wrong: arguments, configuration, a program that does not exist."""

    exit_code = 2


class InventoryError(UsageError):
    """The inventory is wrong; the message starts with `file:line: field:` as far as they are known."""


class RunNotFound(UsageError):
    """No run, or more than one, has the given name."""


class LaunchError(OrchError):
    """The launch failed as a whole."""


class NodeError(LaunchError):
    """
    One node failed; the message names it.

    Args:
        node: its inventory name.
        reason: the cause, worded alike for every node that fails alike: a NodesError folds equal reasons.
        at: the address that failed, if there is one; it may differ between nodes that fail alike.
    """

    def __init__(self, node: str, reason: str, *, at: str = "", hint: str = "") -> None:
        message = f"{at}: {reason}" if at else reason
        is_named = at.partition(" ")[0] == node
        super().__init__(message if is_named else f"{node}: {message}", hint=hint)
        self.node = node
        self.reason = reason
        self.at = at


class Unreachable(NodeError):
    """There is no connection to the node, or it was lost. Its ranks may still be running."""


class NotListening(Unreachable):
    """The node's own host, not a jump host, answers that the port is closed."""


class LoginRefused(NodeError):
    """The node refused the login, or its host key is not the known one. Retrying cannot help."""


class NodesError(LaunchError):
    """Some of many nodes failed; every failure is kept, in node order. Equal reasons are one line with one hint."""

    def __init__(self, failures: Sequence[NodeError], total: int) -> None:
        self.failures = tuple(failures)
        reasons = folded(failures, total)
        if len(reasons) == 1:
            [(line, hint)] = reasons
            super().__init__(line, hint=hint)
            return
        lines = [f"{len(failures)} of {total} nodes failed"]
        for line, hint in reasons:
            lines += [f"  {line}", f"    next: {hint}"] if hint else [f"  {line}"]
        super().__init__("\n".join(lines))


def folded(failures: Sequence[NodeError], total: int) -> list[tuple[str, str]]:
    """One line and one hint for each reason, in the order of the failures, such as `n[3,7-9]: no route to host (4 of 16)`."""
    by_reason: dict[str, list[NodeError]] = {}
    for failure in failures:
        by_reason.setdefault(failure.reason, []).append(failure)
    groups = list(by_reason.values())
    lines = [(_line(group, total), group[0].hint) for group in groups[:MOST_REASONS]]
    if others := groups[MOST_REASONS:]:
        names = fold(failure.node for group in others for failure in group)
        lines.append((f"{names}: {len(others)} other reasons", ""))
    return lines


def _line(group: Sequence[NodeError], total: int) -> str:
    """The nodes of one reason; an address that they do not share is left out."""
    first = group[0]
    if len(group) == 1:
        text = str(first)
    else:
        is_shared = all(failure.at == first.at for failure in group)
        at = f"{first.at}: " if first.at and is_shared else ""
        text = f"{fold(failure.node for failure in group)}: {at}{first.reason}"
    headline, newline, rest = text.partition("\n")
    return f"{headline} ({len(group)} of {total}){newline}{rest}" if total > 1 else text


class RunLost(OrchError):
    """The state of the run cannot be known."""

    exit_code = 5
