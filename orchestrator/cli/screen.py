"""A full screen on a terminal that is drawn by differences: only lines that have changed are written, and nothing if none has."""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self  # in typing from Python 3.11 on

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?25h\x1b[?1049l"  # another screen, without a cursor
KEY_BYTES = 64
KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\r": "enter",
    "\n": "enter",
}


def changes(before: Sequence[str], after: Sequence[str]) -> str:
    """The text that turns a screen with the lines `before` into one with the lines `after`; empty if they are equal."""
    parts = [
        f"\x1b[{index + 1};1H{line}\x1b[0m\x1b[K"
        for index, line in enumerate(after)
        if index >= len(before) or before[index] != line
    ]
    if len(after) < len(before):
        parts.append(f"\x1b[{len(after) + 1};1H\x1b[J")
    return "".join(parts)


def keys_of(typed: str) -> list[str]:
    """The keys of typed characters: a name of KEYS, or the character; unknown sequences are left out."""
    found = []
    while typed:
        name = next((sequence for sequence in KEYS if typed.startswith(sequence)), None)
        if name is not None:
            found.append(KEYS[name])
            typed = typed[len(name) :]
        elif typed[0] == "\x1b" and len(typed) > 1:
            typed = typed[1:].lstrip("[O0123456789;")[1:]
        else:
            found.append(typed[0])
            typed = typed[1:]
    return found


class Screen:
    """
    The terminal of this process as a full screen; for a `with` statement, which leaves it as it was.

    Ctrl-C raises KeyboardInterrupt, as usual; a change of the size redraws everything.
    """

    def __init__(self, output: TextIO, keyboard: int | None = None) -> None:
        self._output, self._keyboard = output, keyboard
        self._lines: Sequence[str] = ()
        self._settings: list[object] | None = None
        self._resized, self._resize = os.pipe()
        os.set_blocking(self._resize, False)
        os.set_blocking(self._resized, False)

    def __enter__(self) -> Self:
        self._on_resize = signal.signal(signal.SIGWINCH, self._note_resize)
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGWINCH, self._on_resize)
        self._leave()
        os.close(self._resize)
        os.close(self._resized)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        with suppress(OSError):
            found = os.get_terminal_size(self._output.fileno())
            if found.columns and found.lines:
                return found.columns, found.lines
        return 80, 24

    @property
    def is_blank(self) -> bool:
        """True if nothing is on the screen, as at first and after its size has changed."""
        return not self._lines

    def draw(self, lines: Sequence[str]) -> int:
        """Show the lines; returns the number of characters that were written."""
        text = changes(self._lines, lines)
        self._lines = list(lines)
        if text:
            self._output.write(text)
            self._output.flush()
        return len(text)

    def keys(self, wait_s: float) -> list[str]:
        """The keys that are pressed within this time, or until the size changes; the first press ends the wait."""
        sources = [self._resized] if self._keyboard is None else [self._resized, self._keyboard]
        ready, _, _ = select.select(sources, [], [], wait_s)
        if self._resized in ready:
            with suppress(BlockingIOError):
                os.read(self._resized, KEY_BYTES)
            self._forget()
        if self._keyboard is None or self._keyboard not in ready:
            return []
        typed = os.read(self._keyboard, KEY_BYTES)
        if not typed:  # the terminal is gone
            raise EOFError
        return keys_of(typed.decode("utf-8", "replace"))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Show the usual screen, as for another program, and then this one again."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    def _enter(self) -> None:
        if self._keyboard is not None:
            self._settings = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self._output.write(ENTER)
        self._forget()

    def _leave(self) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._output.write(LEAVE)
            self._output.flush()
        if self._keyboard is not None and self._settings is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSAFLUSH, self._settings)  # type: ignore[arg-type]  # as tcgetattr returned it

    def _forget(self) -> None:
        """Draw all lines the next time."""
        self._lines = ()
        self._output.write("\x1b[2J")

    def _note_resize(self, _number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(self._resize, b"r")
