"""
A file in the node folder into which others write for the agent, which makes it when it starts, and reads it once a second.

A file and no signal, because the agents of a Slurm job are on other machines than those that write, which share only their folders. NFS shows
the content of a known file at once to who opens it, but new files up to a minute late.
"""

from __future__ import annotations

import os
import time

POLL_S = 1.0


class PolledFile:
    """The file of this node, for its agent."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = os.path.join(folder, name)
        self._next_s = 0.0
        with open(self._path, "wb"):
            pass

    def content(self, *, now: bool = False) -> bytes:
        """The content; empty while nothing is written or the storage is away, and less than a second after the last reading, unless `now`."""
        if time.monotonic() < self._next_s and not now:
            return b""
        self._next_s = time.monotonic() + POLL_S
        return content_of(self._path)


def content_of(path: str) -> bytes:
    """The content of such a file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
