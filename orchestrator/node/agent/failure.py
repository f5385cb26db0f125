"""The exit of a rank, and the cause of a failure from its error file, its stacks and its standard error in the node folder."""

from __future__ import annotations

import os

from orchestrator.node.ranks.stacks import has_left_stacks
from orchestrator.node.run.run_folder import output_stem, process_name
from orchestrator.node.system.files import full_disk, read_json, tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from orchestrator.node.run.events import RankResult

TAIL_BYTES = 16 << 10
# The last line of a traceback, to which torch adds the rank.
EXCEPTION = r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*)$"
# A rank reports the end of another one so, through gloo, NCCL or the store of rank 0.
LOST_PEER = (
    r"gloo/transport/.*?((?:Connection (?:closed|reset) by peer|Broken pipe)(?: \[[^\]]*\]:\d+)?)"
    r"|(remote process exited|ncclRemoteError|Connection was likely closed|got 0 bytes)"
)
BY_SIGNAL = ("KeyboardInterrupt", "SystemExit", "SignalException")  # exceptions with which programs end after a signal
HIDDEN_FAILURE = (
    ", but the program ended with 0: a shell's `wait` without a pid hides failures; "
    "wait for each pid, or start the ranks with torchrun"
)
AFTER_EXCEPTION = r"\s|$|(?:\[rank\d+\]:)?\[[WI]|.*Warning: "  # lines that Python and torch write at the exit
MISSING_FILE = r"""FileNotFoundError: .*No such file or directory: ['"]([^'"\\]+)['"]$"""


def exit_of(
    process: tuple[int, int | None, int], exited_s: float, folder: str, *, cwd: str, ranks: Sequence[int]
) -> tuple[RankResult, str]:
    """
    The exit of a process, and the report of it with the cause of a failure.

    Args:
        process: pid, rank, and wait status; the rank is None for the program that starts the node's ranks.
        cwd: the working directory of the ranks.
        ranks: the ranks of the process.
    """
    from orchestrator.node.system.processes import (
        signal_name,  # an inventory, which needs this module, has no processes
    )

    pid, rank, status = process
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    name = None if code is not None else signal_name(os.WTERMSIG(status))
    error, kind = (None, None) if code == 0 else failure_of(folder, rank, name, ranks)
    missing = None
    if code:
        missing_error, missing = missing_file_of(os.path.join(folder, f"{output_stem(rank)}.err"), error, cwd)
        error = error or missing_error
    exception = "" if code == 0 or rank is None else last_exception(os.path.join(folder, f"{output_stem(rank)}.err"))
    lost = lost_peer(exception)
    if lost and error is None:
        error = f"another rank had ended, or had closed its connection ({lost})"
    core = core_file(cwd, pid) if os.WCOREDUMP(status) else None
    if core is not None:
        error = f"{error}; core file: {core}" if error else f"core file: {core}"
    how = f"exited with code {code}" if name is None else f"was ended by {name}"
    text = f"{process_name(rank)} (pid {pid}) {how}{f': {error}' if error else ''}"
    result: RankResult = {"time": exited_s, "rank": rank, "code": code, "signal": name, "error": error, "kind": kind}
    if missing:
        result["missing"] = missing
    if lost:
        result["lost_peer"] = True
    elif exception:
        result["exception"] = exception
    return result, text


def error_of(path: str) -> tuple[str | None, str | None]:
    """
    Message and kind in a TORCHELASTIC_ERROR_FILE: {"message": {"message": …, "extraInfo": …}} or {"message": …}.

    The kind (storage, memory, …) is the trainer's addition to extraInfo.
    """
    message, kind = (read_json(path) or {}).get("message"), None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        kind = extra.get("kind") if isinstance(extra, dict) else None
        message = message.get("message")
    return None if message is None else str(message), None if kind is None else str(kind)


def last_exception(path: str) -> str:
    """The exception with which a rank's standard error ends, in one line; empty if it ends otherwise."""
    import re  # slow to import

    for line in reversed(tail(path, TAIL_BYTES).splitlines()):
        if not re.match(AFTER_EXCEPTION, line):
            found = re.match(EXCEPTION, line)
            return "" if found is None or found.group(1).startswith(BY_SIGNAL) else found.group(1)[:300]
    return ""


def lost_peer(exception: str) -> str:
    """The words of an exception that report the end of another rank; empty if it is the rank's own failure."""
    import re  # slow to import

    found = re.search(LOST_PEER, exception)
    return "" if found is None else found.group(1) or found.group(2)


def lost_error(folder: str) -> str:
    """The failure of a rank that the program of this node started by hand, before those that only lost the connection to it; empty if there is none."""
    reports = lost_reports(folder)
    if not reports and not _error_files(folder, "joined-"):  # no rank of the node has got as far as its process group
        reports = lost_reports(folder, "unjoined-")
    errors = [report for report in reports if report.get("error")]
    cause = next((report for report in errors if not lost_peer(str(report["error"]))), None)
    silent = next((report for report in reports if not report.get("error")), None)
    if cause is None and errors and silent is not None:
        return f"rank {silent.get('rank')} was ended by a signal or os._exit(), and others lost the connection to it"
    found = cause or next(iter(errors), None)
    return "" if found is None else f"rank {found.get('rank')} failed ({found.get('error')})"


def ended_early(folder: str) -> str:
    """The warning that ranks which the program of this node started by hand were ended early; empty if there are none."""
    ranks = ", ".join(str(report.get("rank")) for report in lost_reports(folder))
    return ranks and (
        f"warning: rank {ranks} was ended early, by a signal or os._exit(), but the program ended with 0, so it counts as done; "
        "a shell's `wait` without a pid hides failures"
    )


def lost_reports(folder: str, begin: str = "lost-") -> list[dict[str, Any]]:  # Any: JSON
    """The notes of ranks started by hand that have failed, with `error`, or have not noted their end."""
    return [report for path in _error_files(folder, begin) if (report := read_json(path))]


def _error_files(folder: str, begin: str) -> list[str]:
    """The files of the node's folder of errors whose names begin so, in the order of their writing."""
    errors = os.path.join(folder, "error")
    try:
        paths = [os.path.join(errors, name) for name in sorted(os.listdir(errors)) if name.startswith(begin)]
        return sorted(paths, key=os.path.getmtime)
    except OSError:
        return []


def error_file(folder: str, rank: int | None) -> str:
    """The TORCHELASTIC_ERROR_FILE of a rank, or of a program that starts the node's ranks: torchrun copies its first rank's there."""
    return os.path.join(folder, "error", "program.json" if rank is None else f"{rank}.json")


def failure_of(
    folder: str, rank: int | None, signal: str | None, ranks: Sequence[int]
) -> tuple[str | None, str | None]:
    """
    Message and kind of a process's failure, from the files in the node folder that belong to the process.

    A full disk is part of the message: a traceback may have found no space there.
    A rank that left stacks hung: its kind is "hang" after an abort by NCCL's watchdog (SIGABRT) or a lost connection.

    Args:
        rank: None for the program that starts the node's ranks.
        signal: the name of the signal that ended the process, if one did.
    """
    error, kind = error_of(error_file(folder, rank))
    disks = (folder, os.environ.get("TMPDIR", "/tmp"), *(["/dev/shm"] if signal == "SIGBUS" else []))  # noqa: S108
    full = next(filter(None, map(full_disk, disks)), "")
    error = "; ".join(filter(None, (error, full))) or None
    may_have_hung = kind == "network" or (kind is None and signal == "SIGABRT")
    return error, "hang" if may_have_hung and any(has_left_stacks(folder, number) for number in ranks) else kind


def core_file(cwd: str, pid: int) -> str | None:
    """The core file of a process in its working directory, where the kernel's default writes it; None if it is not there."""
    names = (f"core.{pid}", "core")
    return next((path for path in (os.path.join(cwd, name) for name in names) if os.path.isfile(path)), None)


def missing_file_of(stderr: str, error: str | None, cwd: str) -> tuple[str | None, str | None]:
    """
    The message of a FileNotFoundError that ended a rank, and the absolute path if the node does not have it; else None.

    Args:
        stderr: the file of the rank's standard error, whose last exception decides unless there is an `error`.
        error: the message in the rank's error file.
        cwd: the working directory of the ranks.
    """
    import re  # slow to import

    if error is None:
        exceptions = re.findall(EXCEPTION, tail(stderr, TAIL_BYTES), re.MULTILINE)
        error = exceptions[-1] if exceptions else ""
    found = re.match(MISSING_FILE, error)
    if found is None:
        return None, None
    path = os.path.normpath(os.path.join(cwd, found.group(1)))
    return error, None if os.path.lexists(path) else path
