"""A progress bar on the last line of a terminal; nothing without a terminal."""

from __future__ import annotations

import os
import time
from typing import Callable, TextIO

from trainer.console import ERASE_LINE, is_terminal
from trainer.text import hours

CELLS = 20
PAUSE_S = 0.1


class Bar:
    """Leaves the cursor at the start of the line, so that the next output overwrites the bar."""

    def __init__(self, stream: TextIO, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if is_terminal(stream) else None
        self._steps, self._clock, self._due = steps, clock, 0.0

    def show(self, step: int, loss: float, rate: str, eta_s: float | None) -> None:
        """Redraw the bar, at most every PAUSE_S."""
        now = self._clock()
        if self._stream is None or now < self._due:
            return
        self._due = now + PAUSE_S
        done = "#" * (CELLS * step // self._steps)
        text = f"{step}/{self._steps} [{done:{CELLS}}] loss {loss:.4f}  {rate}"
        if eta_s is not None:
            text += f"  {hours(eta_s)} left"
        columns = os.get_terminal_size(self._stream.fileno()).columns or 80
        self._write(f"{ERASE_LINE}{text[: columns - 1]}\r")

    def clear(self) -> None:
        self._write(ERASE_LINE)

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
