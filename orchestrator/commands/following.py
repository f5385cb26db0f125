"""Watching a run: print its lines as they come, until it ends or the user looks away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from orchestrator import supervise
from orchestrator.console import LineWriter, say, say_error, say_summary
from orchestrator.errors import LaunchError, NodeError, NodesError
from orchestrator.launchers.base import Launcher, Queue
from orchestrator.logs.follow import Batch, Feed, history, live, merged
from orchestrator.logs.merge import LogLines, last
from orchestrator.plan import GRACE_S, LaunchPlan
from orchestrator.run import RunRecord, RunState
from orchestrator.store import RunFolder
from orchestrator.transports.observed import NodeObservation

Keep = Callable[[LogLines], LogLines | None]
"""Of some lines those that are wanted."""
WATCH_STOPPED = 130  # what a shell reports for a command ended by Ctrl-C
QUEUE_POLL_S = 2.0
WRITTEN_AT_ONCE = 100


class Watch:
    """One run being watched from here."""

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
        self._lost: dict[str, NodeError] = {}

    def past(self, *, tail: int | None, unfinished: bool) -> None:
        """Print what is there already, or the last `tail` lines of it; `unfinished` lines too if no more is expected."""
        lines: Iterable[LogLines] = history(self._feeds)
        if unfinished:
            lines = chain(lines, self._unfinished())
        lines = self._kept(lines)
        stream = iter(lines if tail is None else last(lines, tail))
        while some := list(islice(stream, WRITTEN_AT_ONCE)):
            self._writer.write(some)

    def to_end(self, *, stop_failed: bool) -> RunRecord:
        """
        Print what comes until the run ends; returns its record.

        Args:
            stop_failed: when one node has failed, end the others; a mere reader leaves them alone.

        Raises:
            NodesError: a node cannot be heard any more; the run goes on.
        """
        if self.launcher.unreachable:
            raise NodesError(self.launcher.unreachable, self._plan.node_count)
        job = self.folder.read().slurm_job
        while True:
            self._follow(job)
            if self._ended():  # by the supervisor's word
                self._rest()
                return self.folder.read()
            status = supervise.observe(self.folder, self._plan, self.launcher, job)
            if status.verdict.state.final:
                break
        if stop_failed and status.verdict.state is RunState.FAILED and any(n.finished is None for n in status.nodes):
            for trouble in self.launcher.stop(job, grace_s=GRACE_S):
                say(trouble)
        self._rest()
        return supervise.settle(self.folder, status.verdict, status.nodes)

    def _rest(self) -> None:
        for feed in self._feeds:
            try:
                while lines := feed.read(wait_s=0):
                    self._write(lines)
            except NodeError as error:
                self._write(feed.gaps(error))
        self._write(self._unfinished())

    def _ended(self) -> bool:
        """Whether the record says so; LOST is only the lack of a better word."""
        state = self.folder.read().state
        return state.final and state is not RunState.LOST

    def _unfinished(self) -> Iterator[LogLines]:
        """The last lines that no newline ends."""
        for feed in self._feeds:
            yield from feed.rest()

    def _follow(self, job: str | None) -> None:
        """Until the run looks over, and all that was read by then is printed."""
        unheard = {id(feed) for feed in self._feeds}
        with live(self._feeds) as (arrivals, enough):
            for batches in arrivals:
                self._write(merged(batches))
                for batch in batches:
                    self._take(batch, unheard)
                if not enough.is_set() and (self._ended() or (not unheard and self._looks_over(job))):
                    enough.set()

    def _take(self, batch: Batch, unheard: set[int]) -> None:
        name = batch.feed.place.name
        if batch.error is not None:
            if name not in self._lost:
                say(f"warning: {name}: {batch.error}; trying again, the others go on")
            self._lost[name] = batch.error
            return
        if self._lost.pop(name, None) is not None:
            say(f"{name} is heard again, and read on where it was lost")
        self._nodes |= {node.node: node for node in batch.nodes}
        if not batch.lines or batch.nodes:
            unheard.discard(id(batch.feed))

    def _looks_over(self, job: str | None) -> bool:
        """Whether the run has ended by what was heard; a change of state goes into its record."""
        if self._plan.launcher == "slurm" and time.monotonic() - self._asked > QUEUE_POLL_S:
            before, self._queue = self._queue, self.launcher.queue(job)
            self._asked = time.monotonic()
            if self._queue and not self._nodes and before != self._queue:
                reason = f": {self._queue.reason}" if self._queue.reason else ""
                say(f"Slurm job {job} is {self._queue.word}{reason}")
        asked = self.folder.is_asked_to_stop()
        verdict = supervise.judge(self._plan, list(self._nodes.values()), self._queue, stop_asked=asked)
        if verdict.state.final and supervise.launch_goes_on(self.folder.read()):
            return False  # its nodes are still being started, perhaps again on another port
        if self.folder.supervisor() is not None and verdict.state is not RunState.DONE:
            return self._ended()  # who supervises sees to the end, and writes it down
        if not verdict.state.final:
            supervise.settle(self.folder, verdict)
        return verdict.state.final

    def _write(self, lines: Iterable[LogLines]) -> None:
        self._writer.write(self._kept(lines))

    def _kept(self, lines: Iterable[LogLines]) -> Iterator[LogLines]:
        return (kept for kept in map(self._keep, lines) if kept is not None)


def watch(folder: RunFolder, launcher: Launcher) -> int:
    """Follow a run that was started or taken up again here, and say how it ended; its exit code."""
    run_id = folder.path.name
    say(f"run {run_id} started; Ctrl-C stops watching, the run goes on")
    try:
        record = Watch(folder, launcher, LineWriter(as_json=False), lambda lines: lines).to_end(stop_failed=True)
    except KeyboardInterrupt:
        say(f"stopped watching; the run goes on. `orch logs -f {run_id}` watches again, `orch stop {run_id}` ends it")
        return WATCH_STOPPED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads on; what is still buffered goes nowhere
        say(f"nobody reads on; the run goes on: `orch logs -f {run_id}`")
        return WATCH_STOPPED
    except LaunchError as exc:
        say_error(exc)
        say(
            f"stopped watching; the run goes on. `orch logs -f {run_id}` watches again, `orch status {run_id}` asks after it"
        )
        return exc.exit_code
    say(f"run {run_id} is {record.state.value}" + (f": {record.message}" if record.message else ""))
    say_summary(record.summary)
    return record.exit_code
