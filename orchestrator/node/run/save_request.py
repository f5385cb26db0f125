"""
The request that the ranks of a node save and end: a file in the node folder, which the agent makes when it starts, and reads once a second.

A file and no signal, because the agents of a Slurm job are on other machines than the endpoint, which shares only their folders. NFS shows
the content of a known file at once, but new files up to a minute late.
"""

from __future__ import annotations

import os
import time

SAVE = "save-request"  # in the node folder
POLL_S = 1.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class SaveRequest:
    """The request to this node, for its agent."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, SAVE)
        self._next_s = 0.0
        with open(self._path, "wb"):
            pass

    def grace_s(self, *, now: bool = False) -> Optional[float]:
        """The seconds within which the ranks shall have ended; None without a request, if it was read just before, or while the storage is away."""
        if time.monotonic() < self._next_s and not now:
            return None
        self._next_s = time.monotonic() + POLL_S
        return read_grace_s(self._path)


def read_grace_s(path: str) -> Optional[float]:
    try:
        with open(path, encoding="ascii") as file:
            return float(file.read())
    except (OSError, ValueError):
        return None


def request_save(folder: str, grace_s: float) -> bool:
    """Request that the ranks of a node save and end, once; False if its agent has made no such file."""
    path = os.path.join(folder, SAVE)
    if not os.path.exists(path):
        return False
    if read_grace_s(path) is None:
        with open(path, "w", encoding="ascii") as file:
            file.write(f"{grace_s:g}\n")
    return True
