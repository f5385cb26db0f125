"""Find, signal and reap the descendants of this process, so that none outlives its agent. Linux only."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import sys
import time

from orchestrator.node.system.fast_stdlib import signal, suppress
from orchestrator.node.system.machine import PARENT, START_TIME, stat_fields, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TICK_S = 0.25
OPEN_FILES = 1 << 16
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True)
# Faults must end the process at once; PIPE and XFSZ are OSErrors in Python; KILL and STOP cannot be blocked.
UNCAUGHT = ("SEGV", "BUS", "FPE", "ILL", "TRAP", "SYS", "ABRT", "PIPE", "XFSZ", "KILL", "STOP")
CAUGHT = {int(number) for number in signal.valid_signals()} - {int(getattr(signal, f"SIG{name}")) for name in UNCAUGHT}


class Inherited:
    """Settings that this process inherited and changed for itself; the ranks get the inherited values."""

    def __init__(self, signal_mask: frozenset[int], umask: int) -> None:
        self.signal_mask = signal_mask
        self.umask = umask


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; OSError if the kernel does not know it."""
    if LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def name_process(name: str) -> None:
    """Set the name of this process for `ps` and `top`: a fork has the command line of the endpoint."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name)


def raise_file_limit() -> None:
    """Raise the soft limit of open files, often 1024, as far as the hard one allows: data loaders and NCCL open more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def await_signal(numbers: Iterable[int], wait_s: float) -> int | None:
    """
    The next of these blocked signals, or None after wait_s. SIGALRM is the timer.

    Not sigtimedwait: in Python it returns garbage if the process was stopped (SIGSTOP, a debugger) beyond its deadline.
    """
    signal.setitimer(signal.ITIMER_REAL, wait_s)
    number = signal.sigwait({*numbers, signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    if number == signal.SIGALRM:
        return None
    if signal.SIGALRM in signal.sigpending():  # the timer expired in between
        signal.sigwait({signal.SIGALRM})
    return number


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """State letter, parent's pid and start time in clock ticks since boot; None if there is no such process."""
    fields = stat_fields(pid)
    return (state_of(pid, fields), int(fields[PARENT]), int(fields[START_TIME])) if fields else None


def descendants() -> dict[int, tuple[str, int, int]]:
    """The living descendants of this process, pid -> stat_of(pid)."""
    stats = {int(name): stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        if stat is not None:
            children.setdefault(stat[1], []).append(pid)
    pids = list(children.get(os.getpid(), ()))
    for pid in pids:
        pids.extend(children.get(pid, ()))
    found = {pid: stats[pid] for pid in pids}
    return {pid: stat for pid, stat in found.items() if stat is not None and stat[0] not in "ZX"}


def session_members() -> dict[int, tuple[str, int, int]]:
    """
    The living processes of this process's session, pid -> stat_of(pid).

    A system call per process takes a tenth of the time in which `descendants` reads a file each, on a node of 1,000 processes.
    """
    found: dict[int, tuple[str, int, int]] = {}
    session = os.getsid(0)
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        with suppress(ProcessLookupError, PermissionError):
            stat = stat_of(pid) if os.getsid(pid) == session else None
            if stat is not None and stat[0] not in "ZX":
                found[pid] = stat
    return found


def handles(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal, or has blocked it, as one does that waits for it in a thread."""
    bit = 1 << (number - 1)
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigBlk:", "SigCgt:"))]
    except OSError:  # it has just ended
        return False
    return any(mask & bit for mask in masks)


def send(pid: int, number: int, *, group: bool = False) -> None:
    """Signal a process or a whole group, if it exists."""
    try:
        os.killpg(pid, number) if group else os.kill(pid, number)
    except ProcessLookupError:
        if group:  # a rank may have moved to another group
            send(pid, number)
    except PermissionError as error:  # a set-uid program: the agent can only wait for its end
        print(f"orch agent: pid {pid}: {error}", file=sys.stderr, flush=True)


def signal_descendants(number: int, signalled: set[tuple[int, int]]) -> None:
    """Signal every descendant that is not in `signalled`, and add it; never a new process with the same pid."""
    for pid, (_, _, start_time) in descendants().items():
        stat = stat_of(pid)
        if (pid, start_time) not in signalled and stat is not None and stat[2] == start_time:
            signalled.add((pid, start_time))
            send(pid, number)


def reap() -> Iterator[tuple[int, int]]:
    """Pid and wait status of every child that has ended; ChildProcessError if there is no child at all."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        yield pid, status


def end_descendants(limit_s: float = math.inf) -> None:
    """Kill every descendant and return when none is left, or after limit_s: no signal ends one that waits in a driver."""
    deadline_s = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline_s:
            for _ in reap():  # first, as a search of the descendants reads all of /proc
                pass
            signal_descendants(signal.SIGKILL, set())
            await_signal({signal.SIGCHLD}, TICK_S)
    except ChildProcessError:  # a sub-reaper without a child has no descendant
        return


def signal_name(number: int) -> str:
    """SIGTERM for 15; real-time signals have numbers only."""
    from signal import Signals  # slow to import

    return Signals(number).name if number in set(Signals) else f"SIG{number}"
