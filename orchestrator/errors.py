"""
All errors for users, with their exit codes. 1 (the training failed) and 6 (stopped) are exit codes of runs.

    OrchError (4)            orch itself cannot continue, such as on a full disk
     +- UsageError (2)        the arguments or files of the user are wrong; nothing was started
     |   +- InventoryError    the inventory file, with file, line and field
     |   +- RunNotFound       no run of that name on this machine
     +- PreflightRefused (3)  a check of the nodes failed; nothing was started
     +- LaunchError (4)       the launch failed; what had started was stopped again, or is named
     |   +- Interrupted       by the user; nothing is left
     |   +- NodeError         one node: no Python, unwritable folder
     |   |   +- Unreachable   no connection; NotListening if the node answers that the port is closed, ContainerEnded
     |   |   +- LoginRefused  retrying cannot help
     |   +- NodesError        several nodes, every one of them named
     +- RunLost (5)           the state of a run cannot be known
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.node.number_text import three_digits
from orchestrator.portable.names.hostlist import fold

# The exit status that a shell reports for a command ended by SIGINT, by SIGPIPE.
CTRL_C, CLOSED_PIPE = 130, 141
BUG = 70  # EX_SOFTWARE of sysexits.h
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # Lustre without `-o flock`, NFS without lockd
MOST_REASONS = 20  # different reasons that a NodesError lists
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDIES = dict.fromkeys(FULL_DISK, "free space there, or set ORCH_HOME to a folder on another disk")
_REMEDIES |= dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS), "get permission for it, or set ORCH_HOME to a folder of your own"
)
_REMEDIES |= dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files: ulimit -n")
_REMEDIES |= dict.fromkeys(
    (errno.EAGAIN, errno.ENOMEM), "raise the limit of processes, which counts threads: ulimit -u"
)


class OrchError(Exception):
    """The message is the cause in one sentence; `hint` is the next step, or empty."""

    exit_code = 4

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def __notes__(self) -> list[str]:
        """The next step: from 3.11 on, Python prints it below the message of an exception that nothing catches."""
        return [f"next: {self.hint}"] if self.hint else []


class UsageError(OrchError):
    """The request is wrong: its arguments, its configuration, or a program that does not exist."""

    exit_code = 2


class InventoryError(UsageError):
    """The inventory is wrong; the message starts with `file:line: field:`, as far as these are known."""


class RunNotFound(UsageError):
    """No run, or more than one, has the given name."""


class PreflightRefused(OrchError):
    """The quick check of the nodes failed, so that nothing was started."""

    exit_code = 3


class LaunchError(OrchError):
    """The launch failed as a whole."""


class Interrupted(LaunchError):
    """The user has interrupted the launch, and nothing of it is left."""


class NodeError(LaunchError):
    """
    One node failed; the message names it.

    Args:
        node: its inventory name.
        reason: the cause, in the same words for all nodes with the same failure: a NodesError folds equal reasons.
        at: the address that failed, if any; it may differ between nodes with the same failure.
    """

    def __init__(self, node: str, reason: str, *, at: str = "", hint: str = "") -> None:
        message = f"{at}: {reason}" if at else reason
        is_named = at.partition(" ")[0] == node
        super().__init__(message if is_named else f"{node}: {message}", hint=hint)
        self.node = node
        self.reason = reason
        self.at = at


class Unreachable(NodeError):
    """The node cannot be connected to, or the connection was lost. Its ranks may still be running."""


class NotListening(Unreachable):
    """The node's own host, not a jump host, answers that the port is closed."""


class ContainerEnded(Unreachable):
    """The node's container does not exist or is not running, so none of the ranks in it run either."""


class LoginRefused(NodeError):
    """The node refused the login, or its host key is not the known one. Retrying cannot help."""


class NodesError(LaunchError):
    """Some of many nodes failed; `failures` are in node order. Equal reasons become one line with one hint."""

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
    if omitted := groups[MOST_REASONS:]:
        names = fold(failure.node for group in omitted for failure in group)
        lines.append((f"{names}: {len(omitted)} other reasons", ""))
    return lines


def _line(group: Sequence[NodeError], total: int) -> str:
    """The line of the nodes with one reason; it names the address only if all of them share it."""
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


def os_error_text(exc: OSError) -> str:
    """The file and the cause, on a full disk with its size."""
    text = exc.strerror or str(exc)
    if not exc.filename:
        return text
    if exc.errno == errno.ENOSPC:
        with suppress(OSError):
            disk = os.statvfs(Path(exc.filename).parent)
            free, size = (blocks * disk.f_frsize / 1e9 for blocks in (disk.f_bavail, disk.f_blocks))
            text += f" ({three_digits(free)} of {three_digits(size)} GB free)"
    return f"{exc.filename}: {text}"


def machine_error(exc: BaseException) -> OrchError | None:
    """The failure of this machine that caused an unexpected exception; None for a bug."""
    if isinstance(exc, OSError):
        is_anywhere = exc.errno in FULL_DISK and exc.filename is None  # a write to the output names no file, either
        hint = "free space on the disk that the output goes to, or on that of ORCH_HOME" if is_anywhere else ""
        return OrchError(os_error_text(exc), hint=hint or _REMEDIES.get(exc.errno or 0, ""))
    if isinstance(exc, MemoryError):
        return OrchError("out of memory", hint="free some, or raise the limit: ulimit -v")
    if isinstance(exc, RuntimeError) and exc.args == ("can't start new thread",):  # threading has no class for it
        return OrchError(str(exc), hint=_REMEDIES[errno.EAGAIN])
    return None
