"""Reads the logs of a run, attempt by attempt, and shows the wanted lines; keeps the last observation of each node."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol, TypeVar

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodeError
from orchestrator.launchers.base import Launcher
from orchestrator.logs.follow import Batch, Feed, live, merged, read_all
from orchestrator.logs.history import history, reposition
from orchestrator.logs.lines import BAR_EVERY_S, LogLines, in_order, last
from orchestrator.logs.selection import Selection
from orchestrator.node.run.events import State
from orchestrator.plan.plan import LaunchPlan
from orchestrator.verdict.live_run import LiveRun

__all__ = ["LiveRun", "LogReader", "Viewer"]

T = TypeVar("T")
STOPPED_END = f": {State.STOPPED.lower()}, nothing is left running"
"""The end of the last event of an agent whose ranks were ended on request (node/agent/agent.py)."""
LIVE_BAR_S = 1.0
LIVE_OBSERVATION_S = 5.0
FAILED_EXIT = re.compile(
    r"rank (?P<rank>\d+) \(pid \d+\) exited with (?P<failure>code \d+: .*?)(, after the stop)?", re.DOTALL
)
WIDER = 16
"""The factor by which more lines are searched for the last ones that match a pattern."""


class Viewer(Protocol):
    """Shows the lines of a run, and messages about it."""

    def write(self, lines: Iterable[LogLines]) -> None: ...

    def inform(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def show(self, live: LiveRun | None) -> None: ...


class LogReader:
    """Reads the logs of one attempt after the other."""

    def __init__(
        self,
        launcher: Launcher,
        plan: LaunchPlan,
        viewer: Viewer,
        selection: Selection | None = None,
        *,
        only_wanted_nodes: bool = False,
        is_live: bool = False,
    ) -> None:
        """
        Begin with the first attempt.

        Args:
            only_wanted_nodes: connect only to nodes that can have wanted lines, while `follow` needs all.
            is_live: the newest states of progress bars, and of the ranks' progress, are shown on a terminal.
        """
        self._launcher = launcher
        self._plan = plan
        self._viewer = viewer
        self._selection = selection or Selection()
        self._nodes = self._wanted_nodes() if only_wanted_nodes else None
        self._limit = int(plan.ssh["fanout"])
        self._observes = True
        self._is_live = is_live
        self.ended: set[str] = set()
        """The nodes whose lines so far report that their ranks were ended on request, which are not shown if no routine is."""
        self.repeated_failures: list[tuple[str, str]] = []
        """Node and rank of each exit that is not shown, because that of another rank is, with the same error."""
        self._shown_failures: set[tuple[int, str]] = set()
        """Attempts, and the errors of their ranks that were shown."""
        self._shown_from: dict[str, float] = {}
        """Node -> time before which its lines are not shown."""
        self.begin(1)

    def begin(self, attempt: int) -> None:
        self.attempt = attempt
        self._feeds = self._feeds_of(attempt)
        self.nodes: dict[str, NodeObservation] = {}
        """The last observation of each node."""
        self.unreadable = {feed.folder.name: feed.failure for feed in self._feeds if feed.failure is not None}
        """Folder name -> why it cannot be read at present."""
        self.pending: set[str] = set()
        """The folders that `follow` has not yet read to their present ends."""

    def renew(self) -> None:
        """Read the present nodes of the attempt, each that was read before from its position: a restart may replace one whose start failed."""
        known = {feed.folder.name: feed for feed in self._feeds}
        self._feeds = [known.get(feed.folder.name, feed) for feed in self._feeds_of(self.attempt)]
        names = self.folder_names
        self.nodes = {name: node for name, node in self.nodes.items() if name in names}
        self.unreadable = {feed.folder.name: feed.failure for feed in self._feeds if feed.failure is not None}

    def observe(self, *, nodes: bool) -> None:
        """Keep the last observation of each node from now on, or leave the nodes to the run's supervisor."""
        self._observes = nodes
        for feed in self._feeds:
            feed.observes = nodes

    @property
    def folder_names(self) -> set[str]:
        return {feed.folder.name for feed in self._feeds}

    @property
    def folder_count(self) -> int:
        """The number of folders that are read; one if the nodes share a folder."""
        return len(self._feeds)

    def nodes_without_files(self) -> list[str]:
        """The nodes whose folders were read and in which nothing was found, not even the agent's events."""
        return [
            node
            for feed in self._feeds
            for node in feed.folder.nodes or ()
            if feed.failure is None
            and not any(offset for file, offset in feed.offsets.items() if file.startswith(f"{node}/"))
        ]

    @property
    def has_every_agent(self) -> bool:
        """True if the agent of every node of the attempt has written something."""
        sizes = (item for feed in self._feeds for item in feed.offsets.items())
        return len({file.partition("/")[0] for file, size in sizes if size}) >= self._plan.node_count

    def past(self, *, tail: int | None, unfinished: bool) -> None:
        """Show the lines so far, or the last `tail` of them; lines without an end only if `unfinished`."""
        if tail is None:
            self._write(self._history(unfinished=unfinished))
        else:
            self._viewer.write(self._last(tail, unfinished=unfinished))
            # else their older lines would be shown later
            self._shown_from = dict.fromkeys(self.unreadable, time.time())
        for feed in self._feeds:
            is_known = feed.folder.name in self.unreadable
            if feed.failure is not None and not is_known:  # its node was lost while it was read
                self.unreadable[feed.folder.name] = feed.failure
                self._write(feed.gaps(feed.failure) if unfinished else ())

    def _history(self, *, unfinished: bool) -> Iterator[LogLines]:
        """All attempts, one after the other, from the earliest wanted time."""
        newest, earliest = self._launcher.attempt(), self._selection.earliest
        while True:
            if earliest is not None:
                reposition(self._feeds, lambda feed: feed.begin_at_time(earliest), limit=self._limit)
            yield from history(self._feeds, limit=self._limit)
            if unfinished or self.attempt < newest:
                yield from _unfinished(self._feeds)
            if self.attempt >= newest:
                return
            self.begin(self.attempt + 1)

    def _last(self, count: int, *, unfinished: bool) -> deque[LogLines]:
        """The last `count` wanted lines; the newest attempt becomes the current one."""
        self.begin(self._launcher.attempt())
        kept = self._last_of(self._feeds, count, unfinished=unfinished)
        for attempt in range(self.attempt - 1, 0, -1):
            missing = count - sum(group.count for group in kept)
            if missing <= 0:
                break
            kept.extendleft(reversed(self._last_of(self._feeds_of(attempt), missing, unfinished=True)))
        return kept

    def _last_of(self, feeds: Sequence[Feed], count: int, *, unfinished: bool) -> deque[LogLines]:
        """The last wanted lines of an attempt: the last lines of each file, and more if too few match the pattern."""
        lines = count
        while True:
            reposition(feeds, lambda feed: feed.begin_at_last(lines), limit=self._limit)  # noqa: B023  called at once
            has_all = all(feed.is_at_start for feed in feeds)
            everything = history(feeds, limit=self._limit)
            kept = last(self._kept(chain(everything, _unfinished(feeds) if unfinished else ())), count)
            if has_all or self._selection.pattern is None or sum(group.count for group in kept) >= count:
                return kept
            lines *= WIDER

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
        unread = self._feeds
        while unread:
            results = read_all(unread, limit=self._limit)
            self._write(in_order(lines for lines in results if not isinstance(lines, NodeError)))
            for feed, result in zip(unread, results, strict=True):
                if isinstance(result, NodeError):
                    self.unreadable[feed.folder.name] = result
                    self._write(feed.gaps(result))
                else:
                    self.unreadable.pop(feed.folder.name, None)
            pairs = zip(unread, results, strict=True)
            unread = [feed for feed, result in pairs if feed.has_read and not isinstance(result, NodeError)]
        self._write(_unfinished(self._feeds))

    def warn_unreadable(self, error: NodeError) -> None:
        self._viewer.warn(f"{error}; trying again, the other nodes are still read")

    def _feeds_of(self, attempt: int) -> list[Feed]:
        folders = self._launcher.attempt_folders(attempt, self._nodes)
        return [
            Feed(
                folder,
                self._selection,
                failure=folder.failure,
                observes=self._observes,
                bar_every_s=LIVE_BAR_S if self._is_live else BAR_EVERY_S,
                observe_every_s=LIVE_OBSERVATION_S if self._is_live else math.inf,
            )
            for folder in folders
        ]

    def _wanted_nodes(self) -> frozenset[str] | None:
        """The nodes that can have wanted lines; None if ranks may have moved to other nodes."""
        wanted = self._selection
        if self._plan.by_scheduler or self._plan.replaced:
            return None
        return frozenset(
            node.name
            for node in self._plan.nodes
            if (wanted.nodes is None or node.name in wanted.nodes)
            and (wanted.ranks is None or not wanted.ranks.isdisjoint(node.ranks))
        )

    def _write(self, lines: Iterable[LogLines]) -> None:
        self._viewer.write(self._kept(lines))

    def _kept(self, lines: Iterable[LogLines]) -> Iterator[LogLines]:
        for group in lines:
            if group.time >= self._shown_from.get(group.node, 0.0):
                if group.is_routine and group.text.endswith(STOPPED_END):
                    self.ended.add(group.node)
                if (kept := self._selection.of(group)) is not None and not self._is_repeated(kept):
                    yield kept

    def _is_repeated(self, group: LogLines) -> bool:
        """True for the failure of a rank with an error that was shown; never if the lines of all ranks are wanted."""
        if group.stream != "event" or self._selection.has_rank_metrics:
            return False
        found = FAILED_EXIT.fullmatch(group.text)
        if found is None:
            return False
        failure = self.attempt, found["failure"]
        if failure not in self._shown_failures:
            self._shown_failures.add(failure)
            return False
        self.repeated_failures.append((group.node, found["rank"]))
        return True


def _unfinished(feeds: Sequence[Feed]) -> Iterator[LogLines]:
    """The last lines that no newline ends."""
    for feed in feeds:
        yield from feed.unfinished_lines()
