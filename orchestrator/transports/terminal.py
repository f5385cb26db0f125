"""
Questions to whoever sits at the terminal: passwords, one-time codes, passphrases. Answers are neither kept nor logged here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko

TRIES = 3
_CTRL_C = b"\x03"
_LONGEST_ANSWER = 4096
_turn = threading.Lock()  # a process has one terminal, however many objects stand for it


class GivenUp(Exception):
    """Ctrl-C or Ctrl-D at a question; nothing more is asked."""


class Terminal:
    """The terminal of this process, where there is one; shared by all connections of a command."""

    def __init__(self) -> None:
        self._given_up = False
        self.unlocked: dict[Path, paramiko.PKey | None] = {}
        """The keys whose passphrase has been asked for; None where it was wrong each time."""
        self.asked = False
        """Somebody has answered a question."""

    def is_there(self) -> bool:
        """Whether somebody can be asked: standard input and standard error are a terminal, and it is ours."""
        if not (os.isatty(0) and os.isatty(2)):
            return False
        try:
            os.close(_opened())
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """
        Have the terminal to oneself: many nodes connect at once, and only one in the whole process may ask.

        Raises:
            GivenUp: an earlier question was.
        """
        with _turn:
            if self._given_up:
                raise GivenUp
            yield

    def ask(self, question: str, *, echo: bool = False) -> bytes:
        """
        Ask within a turn, and wait for a line; the answer is as it was typed, in the terminal's encoding.

        The terminal sends no signal meanwhile: the thread that reads would not notice it and go on waiting. Ctrl-C ends
        the line instead, and is passed on to the main thread from here.
        """
        terminal = _opened()
        try:
            before = termios.tcgetattr(terminal)
            asking = [*before[:3], before[3] & ~termios.ISIG & ~(0 if echo else termios.ECHO), *before[4:6]]
            characters = list(before[6])
            characters[termios.VEOL] = _CTRL_C
            try:
                termios.tcsetattr(terminal, termios.TCSAFLUSH, [*asking, characters])
                os.write(terminal, f"orch: {without_controls(question)}".encode(errors="replace"))
                line = os.read(terminal, _LONGEST_ANSWER)
            finally:
                termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
                os.write(terminal, b"\n")
        finally:
            os.close(terminal)
        if line.endswith(b"\n"):
            self.asked = True
            return line[:-1]
        self._given_up = True
        if line.endswith(_CTRL_C):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        raise GivenUp


def without_controls(text: str) -> str:
    """Make foreign text safe to show: nothing in it moves the cursor or imitates a line."""
    return "".join(character if character.isprintable() else " " for character in text)


def _opened() -> int:
    return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
