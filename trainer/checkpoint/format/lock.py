"""One training run per folder: two would remove each other's unfinished checkpoints and mix their metrics. No torch here."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

NAME = ".lock"
HOLDER_BYTES = 1024


def acquire(out: Path, run: str | None) -> str:
    """
    Lock the folder for the life of this process; returns "", or the name of the holder.

    Args:
        out: exists.
        run: orch's id of the run. Its own earlier attempt may hold the lock: a file server may need minutes to notice that a
            node is dead.
    """
    file = os.open(str(out / NAME), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock(), which child processes would inherit
    except OSError as exc:
        holder = os.pread(file, HOLDER_BYTES, 0).decode(errors="replace").strip()
        os.close(file)
        if exc.errno not in (errno.EACCES, errno.EAGAIN):
            return ""  # a file system without locks
        return "" if run and holder.startswith(f"run {run},") else holder or "another process"
    os.ftruncate(file, 0)
    os.pwrite(file, f"run {run or 'outside orch'}, pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return ""  # the file stays open: closing it would release the lock
