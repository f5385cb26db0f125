"""A program on its own terminal, whose screen a test reads and whose keyboard it types on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tests.grounds.components import program
from tests.until import until

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing itself from Python 3.11 on


class Screen:
    """A session leader whose controlling terminal is a pty; killed at the end of the block."""

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self._ours, self._theirs = pty.openpty()
        os.set_blocking(self._ours, False)
        self.text = ""
        # setsid, because the child of a process with threads should do nothing before it execs
        self._process = subprocess.Popen(
            [program("setsid"), "--ctty", *argv],
            cwd=cwd,
            env=env,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def read(self) -> str:
        """All output so far."""
        with contextlib.suppress(BlockingIOError):
            self.text += os.read(self._ours, 1 << 16).decode("utf-8", "replace")
        return self.text

    def until(self, text: str, *, times: int = 1) -> None:
        """Wait until a text has appeared on the screen `times` times."""
        until(lambda: self.read().count(text) >= times, awaited=lambda: f"{text!r} in:\n{self.text}")

    def type(self, text: str) -> None:
        """Type a text; a newline is Enter."""
        os.write(self._ours, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the terminal, which signals that to the program."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def terminate(self) -> None:
        """Send SIGTERM to the program."""
        self._process.terminate()

    def echoes(self) -> bool:
        """True if the terminal echoes input and turns Ctrl-C into a signal."""
        flags = termios.tcgetattr(self._theirs)[3]
        return bool(flags & termios.ECHO and flags & termios.ISIG)

    def ended(self) -> int:
        """Wait for the end, read the last output and return the exit code."""
        until(lambda: (self.read(), self._process.poll())[1] is not None, awaited=lambda: self.text)
        self.read()
        return int(self._process.returncode)
