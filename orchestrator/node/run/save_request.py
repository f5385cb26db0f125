"""The request that the ranks of a node save and end: the grace, which `orch stop --save` writes into a file for the agent."""

from __future__ import annotations

import os

from orchestrator.node.run.polled_file import PolledFile, content_of

SAVE = "save-request"  # in the node folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class SaveRequest:
    """The request to this node, for its agent."""

    def __init__(self, folder: str) -> None:
        self._file = PolledFile(folder, SAVE)

    def grace_s(self, *, now: bool = False) -> Optional[float]:
        """The seconds within which the ranks shall have ended; None without a request, or if the file was read just before, unless `now`."""
        return _grace_s(self._file.content(now=now))


def request_save(folder: str, grace_s: float) -> bool:
    """Request that the ranks of a node save and end, once; False if its agent has made no such file."""
    path = os.path.join(folder, SAVE)
    if not os.path.exists(path):
        return False
    if _grace_s(content_of(path)) is None:
        with open(path, "w", encoding="ascii") as file:
            file.write(f"{grace_s:g}\n")
    return True


def _grace_s(content: bytes) -> Optional[float]:
    try:
        return float(content)
    except ValueError:  # empty, or half written
        return None
