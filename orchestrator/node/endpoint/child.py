"""A process that an endpoint has started."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class Child:
    """A process that this program has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: Optional[int] = None  # the exit code, or the negative number of a signal; None while it runs

    def poll(self) -> Optional[int]:
        """Reap the process if it has ended; return its code."""
        ended, status = (0, 0) if self.code is not None else os.waitpid(self.pid, os.WNOHANG)
        if ended:
            self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.code
