"""Reads the logs of a run, attempt by attempt, and shows the wanted lines; keeps the last observation of each node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from orchestrator.endpoint.replies import NodeObservation
from orchestrator.errors import NodeError
from orchestrator.fanout import each
from orchestrator.launchers.base import Launcher
from orchestrator.logs.follow import Batch, Feed, history, live, merged
from orchestrator.logs.lines import LogLines, last
from orchestrator.plan.plan import LaunchPlan

T = TypeVar("T")
Keep = Callable[[LogLines], LogLines | None]
"""Selects the wanted lines; None if there is none."""


def of_ranks(lines: LogLines) -> LogLines | None:
    """Keep the lines of ranks."""
    return None if lines.rank is None else lines


def without_routine(lines: LogLines) -> LogLines | None:
    """Keep all lines but the events of every run that succeeds."""
    return None if lines.is_routine else lines


class Viewer(Protocol):
    """Shows the lines of a run, and messages about it."""

    def write(self, lines: Iterable[LogLines]) -> None: ...

    def inform(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


class LogReader:
    """Reads the logs of one attempt after the other."""

    def __init__(self, launcher: Launcher, plan: LaunchPlan, viewer: Viewer, keep: Keep) -> None:
        self._launcher = launcher
        self._plan = plan
        self._viewer = viewer
        self._keep = keep
        self._shown_from: dict[str, float] = {}
        """Node -> time before which its lines are not shown."""
        self.begin(1)

    def begin(self, attempt: int) -> None:
        """Read that attempt from now on."""
        self.attempt = attempt
        self._feeds = [Feed(folder, failure=folder.failure) for folder in self._launcher.attempt_folders(attempt)]
        self.nodes: dict[str, NodeObservation] = {}
        """The last observation of each node."""
        self.unreadable = {feed.folder.name: feed.failure for feed in self._feeds if feed.failure is not None}
        """Folder name -> why it cannot be read at present."""
        self.pending: set[str] = set()
        """The folders that `follow` has not yet read to their present ends."""

    @property
    def folder_count(self) -> int:
        """The number of folders that are read; one if the nodes share a folder."""
        return len(self._feeds)

    def past(self, *, tail: int | None, unfinished: bool) -> None:
        """Show the lines so far, or the last `tail` of them; lines without an end only if `unfinished`."""
        lines: Iterable[LogLines] = self._kept(self._history(unfinished=unfinished))
        if tail is not None:
            lines = last(lines, tail)
            self._shown_from = dict.fromkeys(
                self.unreadable, time.time()
            )  # else their older lines would be shown later
        self._viewer.write(lines)
        for feed in self._feeds:
            if (
                feed.failure is not None and feed.folder.name not in self.unreadable
            ):  # its node was lost while it was read
                self.unreadable[feed.folder.name] = feed.failure
                self._write(feed.gaps(feed.failure) if unfinished else ())

    def _history(self, *, unfinished: bool) -> Iterator[LogLines]:
        """All attempts, one after the other."""
        newest = self._launcher.attempt()
        while True:
            yield from history(self._feeds)
            if unfinished or self.attempt < newest:
                yield from self._unfinished()
            if self.attempt >= newest:
                return
            self.begin(self.attempt + 1)

    def follow(self, until: Callable[[], T | None]) -> T | None:
        """Show new lines until `until` returns a result and the lines read before it are shown; return the result."""
        self.pending = {feed.folder.name for feed in self._feeds}
        result: T | None = None
        with live(self._feeds) as (arrivals, enough):
            for batches in arrivals:
                self._write(merged(batches))
                for batch in batches:
                    self._take(batch)
                if result is None:
                    result = until()
                if result is not None:
                    enough.set()
        return result

    def _take(self, batch: Batch) -> None:
        name = batch.feed.folder.name
        if batch.error is not None:
            if name not in self.unreadable:
                self.warn_unreadable(batch.error)
            self.unreadable[name] = batch.error
            return
        if self.unreadable.pop(name, None) is not None:
            self._viewer.inform(f"{name} answers again; its logs continue where they stopped")
        self.nodes |= {node.node: node for node in batch.nodes}
        if not batch.lines or batch.nodes:
            self.pending.discard(name)

    def show_remaining(self) -> None:
        """Show the remaining lines of the attempt, and a gap for each folder that cannot be read."""
        # all folders are reached at the same time, so that unreachable ones delay the others only once
        endpoints = each(self._feeds, lambda feed: feed.folder.endpoint, limit=int(self._plan.ssh["fanout"]))
        for feed, endpoint in zip(self._feeds, endpoints, strict=True):
            try:
                if isinstance(endpoint, NodeError):
                    raise endpoint
                while lines := feed.read(wait_s=0):
                    self._write(lines)
            except NodeError as error:
                self.unreadable[feed.folder.name] = error
                self._write(feed.gaps(error))
            else:
                self.unreadable.pop(feed.folder.name, None)
        self._write(self._unfinished())

    def warn_unreadable(self, error: NodeError) -> None:
        """Warn that a folder cannot be read at present."""
        self._viewer.warn(f"{error}; trying again, the other nodes are still read")

    def _unfinished(self) -> Iterator[LogLines]:
        """The last lines that no newline ends."""
        for feed in self._feeds:
            yield from feed.unfinished_lines()

    def _write(self, lines: Iterable[LogLines]) -> None:
        self._viewer.write(self._kept(lines))

    def _kept(self, lines: Iterable[LogLines]) -> Iterator[LogLines]:
        shown = (group for group in lines if group.time >= self._shown_from.get(group.node, 0.0))
        return (kept for kept in map(self._keep, shown) if kept is not None)
