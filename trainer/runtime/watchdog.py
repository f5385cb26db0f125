"""The watchdog for a rank without progress: a time limit per phase, and a dump of the rank's stacks. No torch here."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path
from typing import Callable, MutableMapping, Optional

from .rank import Rank  # relative: scripts import this package under another name (trainer/scripts)

STACKS = "stacks"
DUMP_AT = 0.9  # share of the collective timeout: the stacks are written before the other ranks fail
STUCK_AT = 0.95  # and by then if another thread holds the interpreter lock
ARM_EVERY_S = 1.0
SLOWER = 5.0  # a step may take this many times as long as the one before it
STDERR = 2


class StackDump:
    """
    The stacks of all threads of this process, written if it makes no progress for a time.

    The file is attempt-N/NODE/stacks/RANK.txt, or standard error outside orch. If there is progress afterwards, the dump
    moves to RANK.went-on.txt: a non-empty RANK.txt means that the rank has not moved since.

    A thread writes them while it holds the interpreter lock, so that no other thread changes its frames meanwhile. If a call
    keeps the lock, faulthandler's timer writes them without it. That alone would end slow processes with SIGSEGV: it may read
    a frame that its thread has just left (https://github.com/python/cpython/issues/116008).
    """

    def __init__(self, rank: Rank, clock_s: Callable[[], float] = time.monotonic) -> None:
        folder = rank.progress_dir and rank.progress_dir.parent / STACKS
        self.path: Optional[Path] = folder and folder / f"{rank.global_rank}.txt"
        self.clock_s = clock_s
        self.limit_s = 0.0
        self.next_arm_s = 0.0  # not earlier: the cost of arming the timer must not grow with the number of steps
        self._file = -1 if self.path else STDERR
        self._changed = threading.Condition()
        self._due_s = 0.0
        self._thread: Optional[threading.Thread] = None
        # A child forked while the timer runs would wait at its exit for a thread that only the parent has.
        os.register_at_fork(
            before=faulthandler.cancel_dump_traceback_later,
            after_in_parent=self._arm,
            after_in_child=self._forget_thread,
        )

    def expect(self, within_s: float) -> None:
        """Record progress; write the stacks unless this is called again within that time."""
        now_s = self.clock_s()
        if within_s == self.limit_s and now_s < self.next_arm_s:
            return
        with self._changed:
            self.limit_s, self.next_arm_s = within_s, now_s + ARM_EVERY_S
            try:
                self._prepare()
            except OSError as exc:
                self.next_arm_s = float("inf")
                sys.stderr.write(f"WARNING: no stacks will be written if this rank hangs: {exc}\n")
                self.path, self._file = None, STDERR
            self._arm()

    def stop(self) -> None:
        """Expect no more progress."""
        with self._changed:
            self.limit_s = 0.0
            self._changed.notify_all()
        faulthandler.cancel_dump_traceback_later()

    def _arm(self) -> None:
        with self._changed:
            if not self.limit_s:
                return
            faulthandler.dump_traceback_later(self.limit_s * STUCK_AT / DUMP_AT, file=self._file)
            earlier_s, self._due_s = self._due_s, time.monotonic() + self.limit_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._dump_when_due, name="stacks", daemon=True)
                self._thread.start()
            elif self._due_s < earlier_s:
                self._changed.notify_all()

    def _dump_when_due(self) -> None:
        with self._changed:
            while self.limit_s:
                left_s = self._due_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                    continue
                faulthandler.cancel_dump_traceback_later()  # it would write them again
                faulthandler.dump_traceback(self._file, all_threads=True)
                self._due_s = float("inf")
            self._thread = None

    def _forget_thread(self) -> None:
        self._changed, self._thread = threading.Condition(), None

    def _prepare(self) -> None:
        """Open an empty file; move one that holds a dump out of the way."""
        if self.path is None or (self._file != -1 and os.fstat(self._file).st_size == 0):
            return
        faulthandler.cancel_dump_traceback_later()
        if self._file != -1:
            self.path.replace(self.path.with_suffix(".went-on.txt"))
            os.close(self._file)
            self._file = -1
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(str(self.path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def record_collectives(torch_version: str, env: MutableMapping[str, str]) -> None:
    """Have NCCL's watchdog log the last collectives when one times out; before torch 2.9 it does not by default."""
    major, minor = torch_version.split(".")[:2]
    if (int(major), int(minor)) < (2, 9):
        env.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")


def ignore_timeout(_: float) -> None:
    """Set no timeout: there is no process group yet."""


class Watchdog:
    """
    The time limit that ranks wait for each other: ddp_timeout, and hang_timeout from the second step on.

    Saving, evaluating and rolling back keep the long limit, since rank 0 works alone. A step may take SLOWER times as long
    as the one before it. The stacks are dumped shortly before the limit.
    """

    def __init__(
        self,
        stacks: StackDump,
        *,
        ddp_timeout_s: float,
        hang_timeout_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stacks, self.clock_s = stacks, clock_s
        self.long_s, self.short_s = ddp_timeout_s, min(ddp_timeout_s, hang_timeout_s)
        self.limit_s = self.long_s
        self.set_timeout: Callable[[float], object] = ignore_timeout
        """Sets the timeout of collectives started afterwards."""
        self._is_warm = False  # the first step since `init` has begun, in which torch compiles and loads
        self._step_began_s: Optional[float] = None

    def begin_phase(self, phase: str) -> None:
        """Apply the limit of a phase of this rank."""
        now_s, limit_s = self.clock_s(), self.long_s
        is_step = phase == "step"
        if is_step and self._is_warm:
            last_step_s = 0.0 if self._step_began_s is None else now_s - self._step_began_s
            limit_s = min(self.long_s, max(self.short_s, SLOWER * last_step_s))
        self._is_warm = is_step or (self._is_warm and phase != "init")
        self._step_began_s = now_s if is_step else None
        if limit_s != self.limit_s:
            self.limit_s = limit_s
            self.set_timeout(limit_s)
        self.stacks.expect(DUMP_AT * limit_s)
