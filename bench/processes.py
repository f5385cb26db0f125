"""
Commands on the clock: how long until lines of their output appear, how long until they end, and that nothing outlives them.
"""

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
    """A command that did not do what is measured; the message says what it did instead."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a user would type, in one terminal or in several at once."""

    commands: Sequence[Sequence[str]]
    cwd: Path
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Timing:
    """
    Seconds since the first command was started, at `begun` on the monotonic clock; `lines` are the moments at which the
    awaited lines had arrived.
    """

    begun: float

    lines: tuple[float, ...]
    end: float
    output: bytes


def adopt_orphans() -> None:
    """Make everything that is started from here a descendant for good, however often it detaches; on TERM, leave in order."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def time_job(job: Job, *, marker: bytes = b"", lines: int = 0, limit_s: float = LIMIT_S) -> Timing:
    """
    Run the job to its end, reading its standard output all the while.

    Raises:
        CommandFailed: it ended with an error or without `lines` lines that hold the marker, or took longer than the limit.
    """
    read, write = os.pipe()
    with tempfile.TemporaryFile() as errors, os.fdopen(read, "rb", buffering=0) as output, _cleared():
        begun = time.monotonic()
        try:
            processes = [_start(command, job, write, errors) for command in job.commands]
        finally:
            os.close(write)
        seen, end, text = _watch(processes, output, marker, begun + limit_s)
        codes = [process.wait() for process in processes]
        errors.seek(0)
        said = (text + errors.read()).decode("utf-8", "replace")
    if any(codes) or len(seen) < lines:
        what = f"exit codes {codes}" if any(codes) else f"{len(seen)} of {lines} lines"
        raise CommandFailed(f"{what}: {_last_words(said)}")
    return Timing(begun, tuple(moment - begun for moment in seen), end - begun, bytes(text))


@contextmanager
def running(job: Job) -> Iterator[None]:
    """Run the job for as long as the block lasts; its output goes nowhere."""
    with Path(os.devnull).open("r+b") as nowhere, _cleared():
        for command in job.commands:
            _start(command, job, nowhere.fileno(), nowhere)
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
    """Moments of the lines with the marker, the moment at which the last process had ended, and all that was printed."""
    seen: list[float] = []
    text = bytearray()
    handles = {os.pidfd_open(process.pid) for process in processes}
    poll = select.poll()
    for descriptor in (output.fileno(), *handles):
        poll.register(descriptor, select.POLLIN)
    try:
        while handles:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise CommandFailed(f"not over in time: {_last_words(text.decode('utf-8', 'replace'))}")
            for descriptor, _ in poll.poll(left_s * 1000):
                if descriptor in handles:
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    handles.discard(descriptor)
                elif data := output.read(_BLOCK_BYTES):
                    text += data
                    # a line counts when its newline is here
                    seen += [time.monotonic()] * (_lines_with(marker, text) - len(seen))
                else:
                    poll.unregister(descriptor)
        end = time.monotonic()
    finally:
        for descriptor in handles:
            os.close(descriptor)
    return seen, end, text


def _lines_with(marker: bytes, text: bytearray) -> int:
    return sum(1 for line in text.split(b"\n")[:-1] if marker in line) if marker else 0


def _last_words(text: str) -> str:
    """The last line that names an error, or else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:300]


@contextmanager
def _cleared() -> Iterator[None]:
    """End within the block's end all that was started in it, by id: whole process trees, whatever sessions they moved to."""
    before = _children()
    try:
        yield
    finally:
        deadline = time.monotonic() + _END_S
        pause = threading.Event()
        while left := _children() - before:
            assert time.monotonic() < deadline, f"still there: {left}"
            for pid in left:
                # not waited for yet, so the number is still the child's
                kill_each(descendants(pid))
                kill(pid)
                _reap(pid)
            pause.wait(_PAUSE_S)


def _children() -> set[int]:
    """Direct children of this process, those that have ended and were not waited for among them."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # subprocess has waited for it
