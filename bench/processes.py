"""Time commands: until lines of their output arrive and until they end. Nothing that they start outlives them."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from tests.grounds.keeper import descendants, kill, kill_each

LIMIT_S = 120.0
_END_S = 10.0
_PAUSE_S = 0.01
_BLOCK_BYTES = 1 << 16
_PR_SET_CHILD_SUBREAPER = 36


class CommandFailed(Exception):
    """A command failed, so there is no figure; the message has its exit code and last error line."""


@dataclass(frozen=True, slots=True)
class Job:
    """The commands that a user would type, in one terminal or in several at once."""

    commands: Sequence[Sequence[str]]
    cwd: Path
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Timing:
    """
    Seconds since the start of the first command, which was at `begun` on the monotonic clock.

    `lines` are the arrival times of the awaited lines.
    """

    begun: float

    lines: tuple[float, ...]
    end: float
    output: bytes


def adopt_orphans() -> None:
    """Make every process started from here stay a descendant, however often it detaches; on SIGTERM, exit with clean-up."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def time_job(job: Job, *, marker: bytes = b"", lines: int = 0, limit_s: float = LIMIT_S) -> Timing:
    """
    Run the job to its end and read its standard output as it arrives.

    Raises:
        CommandFailed: it failed, printed fewer than `lines` lines that contain the marker, or took longer than the limit.
    """
    read, write = os.pipe()
    with tempfile.TemporaryFile() as errors, os.fdopen(read, "rb", buffering=0) as output, _process_scope():
        begun = time.monotonic()
        try:
            processes = [_start(command, job, write, errors) for command in job.commands]
        finally:
            os.close(write)
        arrivals, end, text = _watch(processes, output, marker, begun + limit_s)
        codes = [process.wait() for process in processes]
        errors.seek(0)
        all_text = (text + errors.read()).decode("utf-8", "replace")
    if any(codes) or len(arrivals) < lines:
        problem = f"exit codes {codes}" if any(codes) else f"{len(arrivals)} of {lines} lines"
        raise CommandFailed(f"{problem}: {_last_error(all_text)}")
    return Timing(begun, tuple(arrival - begun for arrival in arrivals), end - begun, bytes(text))


@contextmanager
def running(job: Job) -> Iterator[None]:
    """Run the job while the block runs; its output is discarded."""
    with Path(os.devnull).open("r+b") as devnull, _process_scope():
        for command in job.commands:
            _start(command, job, devnull.fileno(), devnull)
        yield


def _start(command: Sequence[str], job: Job, output: int, errors: BinaryIO) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            cwd=job.cwd,
            env=job.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise CommandFailed(f"{command[0]}: {error.strerror}") from error


def _watch(
    processes: Sequence[subprocess.Popen[bytes]], output: BinaryIO, marker: bytes, deadline: float
) -> tuple[list[float], float, bytearray]:
    """Return the arrival times of the lines with the marker, the time at which the last process ended, and the output."""
    arrivals: list[float] = []
    text = bytearray()
    handles = {os.pidfd_open(process.pid) for process in processes}
    poll = select.poll()
    for descriptor in (output.fileno(), *handles):
        poll.register(descriptor, select.POLLIN)
    try:
        while handles:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise CommandFailed(f"still running at the time limit: {_last_error(text.decode('utf-8', 'replace'))}")
            for descriptor, _ in poll.poll(left_s * 1000):
                if descriptor in handles:
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    handles.discard(descriptor)
                elif data := output.read(_BLOCK_BYTES):
                    text += data
                    # a line has arrived when its newline has
                    arrivals += [time.monotonic()] * (_lines_with(marker, text) - len(arrivals))
                else:
                    poll.unregister(descriptor)
        end = time.monotonic()
    finally:
        for descriptor in handles:
            os.close(descriptor)
    return arrivals, end, text


def _lines_with(marker: bytes, text: bytearray) -> int:
    return sum(1 for line in text.split(b"\n")[:-1] if marker in line) if marker else 0


def _last_error(text: str) -> str:
    """The last line that contains "error", or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:300]


@contextmanager
def _process_scope() -> Iterator[None]:
    """When the block ends, kill every process tree that it started, by id, in whatever session the processes are."""
    before = _children()
    try:
        yield
    finally:
        deadline = time.monotonic() + _END_S
        pause = threading.Event()
        while left := _children() - before:
            assert time.monotonic() < deadline, f"still running: {left}"
            for pid in left:
                # not reaped yet, so the pid is still that of the child
                kill_each(descendants(pid))
                kill(pid)
                _reap(pid)
            pause.wait(_PAUSE_S)


def _children() -> set[int]:
    """The pids of the direct children of this process, zombies included."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # subprocess has reaped it
