"""A program at a terminal of its own, and somebody who reads its screen and types."""

from __future__ import annotations

import contextlib
import os
import pty
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
    """Leads a session whose controlling terminal is a pty; ended with the block."""

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
        """All that has been on the screen so far."""
        with contextlib.suppress(BlockingIOError):
            self.text += os.read(self._ours, 1 << 16).decode("utf-8", "replace")
        return self.text

    def until(self, text: str, *, times: int = 1) -> None:
        """Wait until a text has been on the screen so many times."""
        until(lambda: self.read().count(text) >= times, deadline_s=30, awaited=lambda: f"{text!r} in:\n{self.text}")

    def type(self, text: str) -> None:
        """Press these keys, Enter is a newline."""
        os.write(self._ours, text.encode())

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, and takes Ctrl-C as a signal."""
        flags = termios.tcgetattr(self._theirs)[3]
        return bool(flags & termios.ECHO and flags & termios.ISIG)

    def ended(self) -> int:
        """The exit code, once it has ended; what it wrote last has been read."""
        until(lambda: (self.read(), self._process.poll())[1] is not None, deadline_s=30, awaited=lambda: self.text)
        self.read()
        return int(self._process.returncode)
