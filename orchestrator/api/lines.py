"""The lines of a run's logs, read by a thread as fast as they are taken."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.logs.lines import LogLines, Stream
from orchestrator.logs.printable import printable

if TYPE_CHECKING:
    from orchestrator.usecases.reports.log_reader import LiveRun, Viewer

WAITING_GROUPS = 1000  # of lines that one rank wrote at one time
POLL_S = 0.2
LEAVE_S = 5.0  # a reader that waits for a silent node ends with the process


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line; `str` is its form in the output of `orch logs`."""

    time: float
    """In seconds since 1970."""
    node: str
    rank: int | None
    """None for the agent of the node, and for a program that starts its ranks itself."""
    stream: Stream
    text: str

    def __str__(self) -> str:
        return f"[{self.node}:{'-' if self.rank is None else self.rank}] {printable(self.text)}"


class _Abandoned(Exception):
    """Nobody takes the lines any more."""


class _Lines:
    """A viewer whose lines and messages are taken by another thread."""

    def __init__(self) -> None:
        self._items: queue.Queue[LogLines | str | None] = queue.Queue(WAITING_GROUPS)
        self.is_abandoned = threading.Event()

    def write(self, lines: Iterable[LogLines]) -> None:
        for group in lines:
            self.put(group)
        if self.is_abandoned.is_set():
            raise _Abandoned

    def put(self, item: LogLines | str | None) -> None:
        """Add lines, a message, or None for the end; wait while too many have not been taken."""
        while not self.is_abandoned.is_set():
            try:
                return self._items.put(item, timeout=POLL_S)
            except queue.Full:
                continue
        raise _Abandoned

    def taken(self, on_message: Callable[[str], None]) -> Iterator[LogLine]:
        while (item := self._items.get()) is not None:
            if isinstance(item, str):
                on_message(item)
                continue
            for text in item.text.split("\n"):
                yield LogLine(item.time, item.node, item.rank, item.stream, text)

    def inform(self, text: str) -> None:
        self.put(text)

    def warn(self, text: str) -> None:
        self.put(text)

    def show(self, live: LiveRun | None) -> None:
        """Leave it out."""


def lines_of(read: Callable[[Viewer], None], on_message: Callable[[str], None]) -> Iterator[LogLine]:
    """
    Yield the lines that `read` writes to its viewer, and raise its exception after the last one.

    It runs in a thread, which ends soon after the iterator is closed; `on_message` is called by the thread that takes the lines.
    """
    lines, failures = _Lines(), list[BaseException]()

    def run() -> None:
        with suppress(_Abandoned):
            try:
                read(lines)
            except BaseException as failure:  # noqa: BLE001  raised in the thread that takes the lines
                failures.append(failure)
            lines.put(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield from lines.taken(on_message)
    finally:
        lines.is_abandoned.set()
        thread.join(LEAVE_S)
    if failures:
        raise failures[0]
