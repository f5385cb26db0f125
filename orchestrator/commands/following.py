"""Watching a run: print its lines as they come, until it ends or the user looks away."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from orchestrator import supervise
from orchestrator.console import LineWriter, say
from orchestrator.errors import NodesError
from orchestrator.launchers.base import Launcher, Queue
from orchestrator.logs.follow import Batch, Feed, history, live
from orchestrator.logs.merge import LogLine
from orchestrator.plan import GRACE_S, LaunchPlan
from orchestrator.run import RunRecord, RunState
from orchestrator.store import RunFolder
from orchestrator.transports.observed import NodeObservation

Keep = Callable[[LogLine], bool]
WATCH_STOPPED = 130  # what a shell reports for a command ended by Ctrl-C
QUEUE_POLL_S = 2.0
LINES_AT_ONCE = 1000


class Watch:
    """One run being watched from here. Reading only, but for the end: a failed run's other nodes are stopped."""

    def __init__(self, folder: RunFolder, launcher: Launcher, writer: LineWriter, keep: Keep) -> None:
        self.folder = folder
        self.launcher = launcher
        self._plan: LaunchPlan = folder.read_plan()
        self._writer = writer
        self._keep = keep
        self._feeds = [Feed(place) for place in launcher.places()]
        self._nodes: dict[str, NodeObservation] = {}
        self._queue: Queue | None = None
        self._asked = float("-inf")

    def past(self, tail: int | None) -> None:
        """Print what is there already, or the last `tail` lines of it."""
        lines: Iterable[LogLine] = filter(self._keep, history(self._feeds))
        if tail is not None:
            lines = deque(lines, maxlen=tail)
        stream = iter(lines)
        while batch := list(islice(stream, LINES_AT_ONCE)):
            self._writer.write(batch)

    def rest(self) -> None:
        """Print the last lines that no newline ends; nothing more is expected."""
        for feed in self._feeds:
            self._write(feed.rest())

    def to_end(self) -> RunRecord:
        """
        Print what comes until the run ends; returns its record.

        Raises:
            NodesError: a node cannot be heard any more; the run goes on.
        """
        if self.launcher.unreachable:
            raise NodesError(self.launcher.unreachable, self._plan.node_count)
        job = self.folder.read().slurm_job
        silent = {id(feed) for feed in self._feeds}
        with live(self._feeds) as batches:
            for batch in batches:
                self._take(batch, silent)
                if not silent and self._judged(job):
                    break
        return self._finish(job)

    def _take(self, batch: Batch, silent: set[int]) -> None:
        if batch.error is not None:
            raise NodesError([batch.error], self._plan.node_count)
        self._write(batch.lines)
        self._nodes |= {node.node: node for node in batch.nodes}
        if not batch.lines or batch.nodes:
            silent.discard(id(batch.feed))

    def _judged(self, job: str | None) -> bool:
        """Whether the run is over; a change of state goes into its record."""
        if job is not None and time.monotonic() - self._asked > QUEUE_POLL_S:
            before, self._queue = self._queue, self.launcher.queue(job)
            self._asked = time.monotonic()
            if self._queue and not self._nodes and (before is None or before != self._queue):
                say(
                    f"Slurm job {job} is {self._queue.word}" + (f": {self._queue.reason}" if self._queue.reason else "")
                )
        verdict = supervise.judge(self._plan, list(self._nodes.values()), self._queue)
        if not verdict.state.final:
            supervise.settle(self.folder, verdict)
        return verdict.state.final

    def _finish(self, job: str | None) -> RunRecord:
        status = supervise.observe(self._plan, self.launcher, job)
        if status.verdict.state is not RunState.DONE and any(node.finished is None for node in status.nodes):
            left = self.launcher.stop(job, grace_s=GRACE_S)
            for trouble in left:
                say(trouble)
        for feed in self._feeds:
            while lines := feed.read(wait_s=0):
                self._write(lines)
        self.rest()
        return supervise.settle(self.folder, status.verdict, status.nodes)

    def _write(self, lines: Sequence[LogLine]) -> None:
        self._writer.write(line for line in lines if self._keep(line))
