"""A rank that makes no progress: how long that may last in which phase, and the stacks that it leaves. No torch here."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from pathlib import Path
from typing import Callable, MutableMapping, Optional

from .rank import Place  # relative: scripts get this under another name (trainer/scripts)

STACKS = "stacks"
DUMP_AT = 0.9  # of the time after which the others give a rank up: by then its stacks are written
ARM_EVERY_S = 1.0
SLOWER = 5.0  # times as long as the step before: this one may be slow, and none of its ranks has hung
STDERR = 2


class Stacks:
    """
    The stacks of all threads of this process, written when it made no progress for a time.

    They go to attempt-N/NODE/stacks/RANK.txt, or to standard error outside orch. If there is progress after that, what
    was written moves to RANK.went-on.txt: who finds something in RANK.txt knows that the rank has stood still since.
    By faulthandler's timer, a thread of C: it needs no turn of Python's, which a call that is stuck may never give.
    """

    def __init__(self, place: Place, clock_s: Callable[[], float] = time.monotonic) -> None:
        folder = place.progress_dir and place.progress_dir.parent / STACKS
        self.path: Optional[Path] = folder and folder / f"{place.rank}.txt"
        self.clock_s = clock_s
        self.limit_s = 0.0
        self.again_s = 0.0  # before, the timer is left alone: what it costs must not depend on how short steps are
        self._file = -1 if self.path else STDERR
        # A child that is forked while the timer runs would wait at its end for a thread that only its parent has.
        os.register_at_fork(before=faulthandler.cancel_dump_traceback_later, after_in_parent=self._arm)

    def expect(self, within_s: float) -> None:
        """There is progress now; write the stacks unless this is called again within that time."""
        now_s = self.clock_s()
        if within_s == self.limit_s and now_s < self.again_s:
            return
        self.limit_s, self.again_s = within_s, now_s + ARM_EVERY_S
        try:
            self._prepare()
        except OSError as exc:
            self.again_s = float("inf")
            sys.stderr.write(f"WARNING: no stacks will be written if this rank hangs: {exc}\n")
            self.path, self._file = None, STDERR
        self._arm()

    def stop(self) -> None:
        """Nothing more is expected."""
        self.limit_s = 0.0
        faulthandler.cancel_dump_traceback_later()

    def _arm(self) -> None:
        if self.limit_s:
            faulthandler.dump_traceback_later(self.limit_s, file=self._file)

    def _prepare(self) -> None:
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
    """Of the last collectives, for NCCL's watchdog to write down when one takes too long: before torch 2.9 there is none."""
    major, minor = torch_version.split(".")[:2]
    if (int(major), int(minor)) < (2, 9):
        env.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")


def ignored(_: float) -> None:
    """Of a time that nobody has to keep yet."""


class Patience:
    """
    How long ranks wait for each other: ddp_timeout, but hang_timeout once the first step is done.

    What rank 0 does alone takes its time: saving, evaluating, going back. A step may, too, if the one before it did.
    Hears every phase of this rank. The stacks come a little before the end.
    """

    def __init__(
        self,
        stacks: Stacks,
        *,
        ddp_timeout_s: float,
        hang_timeout_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stacks, self.clock_s = stacks, clock_s
        self.long_s, self.short_s = ddp_timeout_s, min(ddp_timeout_s, hang_timeout_s)
        self.limit_s = self.long_s
        self.set_timeout: Callable[[float], object] = ignored
        """Of the collectives that begin from then on."""
        self._is_settled = False  # the first step since `init` has begun: what compiles and loads does so in that
        self._began_s: Optional[float] = None  # when the step under way did

    def hear(self, phase: str) -> None:
        now_s, limit_s = self.clock_s(), self.long_s
        is_step = phase == "step"
        if is_step and self._is_settled:
            took_s = 0.0 if self._began_s is None else now_s - self._began_s
            limit_s = min(self.long_s, max(self.short_s, SLOWER * took_s))
        self._is_settled = is_step or (self._is_settled and phase != "init")
        self._began_s = now_s if is_step else None
        if limit_s != self.limit_s:
            self.limit_s = limit_s
            self.set_timeout(limit_s)
        self.stacks.expect(DUMP_AT * limit_s)
