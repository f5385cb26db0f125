"""The last line of a terminal on which a run is watched: its state, rewritten in place below the log."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, TextIO

from orchestrator.cli.columns import cut
from orchestrator.cli.numbers import number_text, rate_text
from orchestrator.logs.printable import printable
from orchestrator.usecases.durations import clock

if TYPE_CHECKING:
    from orchestrator.usecases.reports.log_reader import LiveRun  # imports what queries nodes

ERASE_LINE = "\r\x1b[K"
REDRAW_S = 0.25  # between two redraws, at least
TICK_S = 1.0  # the time is shown in seconds
BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_COLUMNS = 40
MOST_LOSSES = 4096  # in memory; of more, every second one is dropped
GREEN, YELLOW = 32, 33


def footer_text(live: LiveRun, now_s: float, bar: str = "") -> str:
    """
    The state of a run in one line: `RUNNING 2m07s · step 93/100 · loss 2.41 · 3.6k tokens/s · ETA 8s · n0,n1`.

    Args:
        now_s: in seconds since 1970.
        bar: the newest state of a progress bar, which is shown before the first step.
    """
    parts = [f"{live.state} {clock(now_s - live.begun_s)}"]
    if live.attempt > 1:
        parts.append(f"attempt {live.attempt}")
    if live.waits:
        parts.append(live.waits)
    elif (training := live.training) is not None:
        parts.append(f"step {training.step}" + ("" if training.steps is None else f"/{training.steps}"))
        if training.phase not in (None, "step", "done"):
            parts.append(training.phase)
        if training.loss is not None:
            parts.append(f"loss {number_text(training.loss)}")
        if training.rate is not None:
            parts.append(rate_text(*training.rate))
        left_s = (training.eta_s or 0.0) - (training.age_s(now_s) or 0.0)
        if left_s >= 1:
            parts.append(f"ETA {clock(left_s)}")
    elif bar:
        parts.append(bar)
    return " · ".join([*map(printable, parts), *filter(None, [live.nodes])])


def sparkline(values: Sequence[float], columns: int = SPARKLINE_COLUMNS) -> str:
    """The values as blocks of eight heights, each column the mean of equally many values; empty if there are no two finite ones."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:  # noqa: PLR2004
        return ""
    count = min(columns, len(finite))
    bounds = [index * len(finite) // count for index in range(count + 1)]
    means = [sum(finite[first:end]) / (end - first) for first, end in pairwise(bounds)]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


class Losses:
    """The losses of a run that is watched, by step; a restart replaces those of repeated steps."""

    def __init__(self) -> None:
        self._by_step: dict[int, float] = {}

    def add(self, step: int, loss: float) -> None:
        if len(self._by_step) >= MOST_LOSSES:
            self._by_step = dict(list(self._by_step.items())[::2])
        self._by_step[step] = loss

    def text(self, first: float | None = None, last: float | None = None) -> str:
        """The first loss, the sparkline and the last loss; empty without a sparkline. `first` and `last` are those that the program reports, if it does."""
        ends = [[] if loss is None else [loss] for loss in (first, last)]
        values = [*ends[0], *(self._by_step[step] for step in sorted(self._by_step)), *ends[1]]
        line = sparkline(values)
        return f"{number_text(values[0])} {line} {number_text(values[-1])}" if line else ""


class Footer:
    """
    The state of a run below its log, on a terminal; erased while other lines are printed, and by `end`.

    It is drawn at most four times a second, and only if its text has changed. A process in the background draws nothing.
    """

    def __init__(self, terminal: TextIO, *, has_colour: bool) -> None:
        self._terminal, self._has_colour = terminal, has_colour
        self._live: LiveRun | None = None
        self._bar = ""
        self._drawn = ""
        self._drawn_s = -math.inf
        """By time.monotonic()."""
        self._changed = threading.Condition(threading.RLock())
        self._has_ended = False
        with contextlib.suppress(RuntimeError):  # the user's limit of threads is reached
            threading.Thread(target=self._keep_drawn, daemon=True, name="footer").start()

    def show(self, live: LiveRun | None) -> None:
        """Show this state from now on; None shows nothing."""
        with self._changed:
            self._live = live
            if live is None:
                self._erase()
            self._changed.notify_all()

    def show_bar(self, text: str) -> None:
        """Show the newest state of a progress bar; empty at its end."""
        with self._changed:
            self._bar = text
            self._changed.notify_all()

    @contextmanager
    def erased(self) -> Iterator[None]:
        """Erase the line, so that other lines can be printed, and draw it again after them."""
        with self._changed:
            self._erase()
            try:
                yield
            finally:
                self._changed.notify_all()

    def end(self) -> None:
        """Erase the line for good."""
        with self._changed:
            self._has_ended = True
            self._erase()
            self._changed.notify_all()

    def _keep_drawn(self) -> None:
        with self._changed:
            while not self._has_ended:
                now_s = time.monotonic()
                wait_s = self._drawn_s + REDRAW_S - now_s
                if wait_s <= 0:
                    wait_s = TICK_S
                    self._draw(now_s)
                self._changed.wait(wait_s)

    def _draw(self, now_s: float) -> None:
        if self._live is None or not self._is_in_foreground():
            return
        columns = shutil.get_terminal_size().columns - 1
        text = cut(footer_text(self._live, time.time(), self._bar), columns)
        if text != self._drawn:
            self._drawn, self._drawn_s = text, now_s
            if self._has_colour:
                colour = GREEN if self._live.state == "RUNNING" and not self._live.waits else YELLOW
                text = re.sub(r"^[A-Z]+", lambda state: f"\x1b[{colour}m{state[0]}\x1b[0m", text)
            self._write(f"{ERASE_LINE}{text}")

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = ""
            self._write(ERASE_LINE)

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._terminal.fileno()) == os.getpgrp()
        except OSError:  # not the controlling terminal of this process
            return True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more
            self._terminal.write(text)
            self._terminal.flush()
