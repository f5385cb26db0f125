"""The output files of the ranks, and offsets.jsonl, an index of their sizes by time."""

from __future__ import annotations

import os
import time

from orchestrator.node.run.events import OFFSETS, Journal
from orchestrator.node.system.files import open_for_write
from orchestrator.node.system.processes import TICK_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.node.run.events import Clock


class LogIndex:
    """Records the size of each file, at most once per TICK_S unless requested (`now`)."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._journal = Journal(os.path.join(folder, OFFSETS), clock)
        self._descriptors: dict[str, int] = {}  # by file name
        self._sizes: dict[str, int] = {}  # the last recorded ones
        self._next_s = 0.0

    def open(self, name: str) -> int:
        """Open a file for a rank to append to, once."""
        if name not in self._descriptors:
            self._descriptors[name] = open_for_write(os.path.join(self._folder, name), os.O_APPEND)
        return self._descriptors[name]

    def record(self, *, now: bool = False) -> None:
        """Record the sizes of the files that have grown; if the disk is full, in a later call."""
        if (time.monotonic() < self._next_s and not now) or self._journal.flush() is not None:
            return
        self._next_s = time.monotonic() + TICK_S
        sizes = {name: os.fstat(descriptor).st_size for name, descriptor in self._descriptors.items()}
        grown = {name: size for name, size in sizes.items() if size != self._sizes.get(name, 0)}
        if grown:
            self._journal.add(size=grown)
            self._sizes.update(grown)

    def require_written(self) -> None:
        self._journal.require_written()
