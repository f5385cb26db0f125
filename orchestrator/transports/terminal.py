"""Prompts at the user's terminal: passwords, one-time codes, passphrases. Answers are neither kept nor logged here."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko

TRIES = 3
_CTRL_C = b"\x03"
ERASE_LINE = "\r\x1b[K"  # a line about the progress of the launch
_LONGEST_ANSWER = 4096
_lock = threading.Lock()  # a process has one terminal, even if it has several Terminal objects


class PromptCancelled(Exception):
    """The user pressed Ctrl-C or Ctrl-D at a prompt; no prompt follows."""


class Terminal:
    """
    The terminal of this process, if it has one; shared by all connections of a command.

    Args:
        may_prompt: False if the logins must succeed without prompts.
    """

    def __init__(self, *, may_prompt: bool = True) -> None:
        self._may_prompt = may_prompt
        self.is_cancelled = False
        """True if the user has cancelled a prompt."""
        self.unlocked: dict[Path, paramiko.PKey | None] = {}
        """The keys whose passphrases have been prompted for; None if all answers were wrong."""

    def is_available(self) -> bool:
        """Return whether the user can be prompted: standard input and error are a terminal, which controls this process."""
        if not (self._may_prompt and os.isatty(0) and os.isatty(2)):
            return False
        try:
            os.close(_open_terminal())
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """
        Reserve the terminal: many nodes connect at once, and only one in the process may prompt.

        Raises:
            PromptCancelled: the user has cancelled an earlier prompt.
        """
        with _lock:
            if self.is_cancelled:
                raise PromptCancelled
            yield

    def unless_prompting(self, write: Callable[[], None]) -> None:
        """Write to the terminal now, or not at all if the user is being prompted; a prompt begins after it."""
        if _lock.acquire(blocking=False):
            try:
                write()
            finally:
                _lock.release()

    def prompt(self, question: str, *, echo: bool = False) -> bytes:
        """
        Prompt with the terminal locked, and wait for a line; the answer is in the terminal's encoding.

        The terminal sends no signal meanwhile, as it would not interrupt the reading thread. Ctrl-C ends the line instead,
        and is passed on to the main thread from here.
        """
        terminal = _open_terminal()
        try:
            before = termios.tcgetattr(terminal)
            flags = before[3] & ~termios.ISIG & ~(0 if echo else termios.ECHO)
            characters = list(before[6])
            characters[termios.VEOL] = _CTRL_C
            try:
                termios.tcsetattr(terminal, termios.TCSAFLUSH, [*before[:3], flags, *before[4:6], characters])
                os.write(terminal, f"{ERASE_LINE}orch: {printable_text(question)}".encode(errors="replace"))
                line = os.read(terminal, _LONGEST_ANSWER)
            finally:
                termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
                os.write(terminal, b"\n")
        finally:
            os.close(terminal)
        if line.endswith(b"\n"):
            return line[:-1]
        self.is_cancelled = True
        if line.endswith(_CTRL_C):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        raise PromptCancelled


def printable_text(text: str) -> str:
    """Make text of another program safe to show: it cannot move the cursor or imitate a line."""
    return "".join(character if character.isprintable() else " " for character in text)


def _open_terminal() -> int:
    return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
