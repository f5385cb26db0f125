"""Watching a run: print its lines as they come, until it ends or the user looks away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Protocol

from orchestrator.endpoint.replies import NodeObservation
from orchestrator.errors import NodeError, NodesError
from orchestrator.fanout import each
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.job import SILENT
from orchestrator.launchers.slurm.poll import Poll, PollResult, news
from orchestrator.logs.follow import Batch, Feed, history, live, merged
from orchestrator.logs.lines import LogLines, last
from orchestrator.plan.plan import GRACE_S, LaunchPlan
from orchestrator.run import RunRecord, RunState
from orchestrator.store import KeptRun
from orchestrator.verdict import observe
from orchestrator.verdict.judge import Verdict, judge
from orchestrator.verdict.launching import is_launching
from orchestrator.verdict.observe import Status
from orchestrator.verdict.settle import settle

Keep = Callable[[LogLines], LogLines | None]
"""Of some lines those that are wanted."""


class Viewer(Protocol):
    """Shows the lines of a watched run, and what happens to it."""

    def write(self, lines: Iterable[LogLines]) -> None: ...

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


class Watch:
    """One run being watched from here."""

    def __init__(self, run: KeptRun, launcher: Launcher, viewer: Viewer, keep: Keep) -> None:
        self.run = run
        self.launcher = launcher
        self._plan: LaunchPlan = run.read_plan()
        self._is_guest = self._plan.launcher == "ssh" and not run.is_recorded
        self._quiet_since: float | None = None
        self._viewer = viewer
        self._keep = keep
        self._poll: Poll | None = None
        self._told = PollResult(None, 1)
        self._newest = launcher.attempt()
        self._begin(1)
        self._shown_from: dict[str, float] = {}
        self._ends_failed = False
        self._has_warned = False

    def _begin(self, attempt: int) -> None:
        """Turn to the node folders of that attempt."""
        self._attempt = attempt
        self._feeds = [Feed(place, failure=place.failure) for place in self.launcher.places(attempt)]
        self._nodes: dict[str, NodeObservation] = {}
        self.lost = {feed.place.name: feed.failure for feed in self._feeds if feed.failure is not None}
        """The places that cannot be heard just now, and why."""

    def past(self, *, tail: int | None, unfinished: bool) -> None:
        """Print what is there already, or the last `tail` lines of it; `unfinished` lines too if no more is expected."""
        lines: Iterable[LogLines] = self._kept(self._history(unfinished=unfinished))
        if tail is not None:
            lines = last(lines, tail)
            self._shown_from = dict.fromkeys(self.lost, time.time())  # what is to be left out comes with them, later
        self._viewer.write(lines)
        for feed in self._feeds:
            if feed.failure is not None and feed.place.name not in self.lost:  # it was lost in the midst
                self.lost[feed.place.name] = feed.failure
                self._write(feed.gaps(feed.failure) if unfinished else ())

    def _history(self, *, unfinished: bool) -> Iterator[LogLines]:
        """All attempts, one after the other."""
        while True:
            yield from history(self._feeds)
            if unfinished or self._attempt < self._newest:
                yield from self._unfinished()
            if self._attempt == self._newest:
                return
            self._begin(self._attempt + 1)

    def to_end(self, *, stop_failed: bool) -> RunRecord:
        """
        Print what comes until the run ends; returns its record.

        Args:
            stop_failed: when one node has failed, end the others; a mere reader leaves them alone.

        Raises:
            NodesError: the run looks over, but nodes that cannot be reached leave open how it ended.
        """
        self._ends_failed = stop_failed
        for error in self.lost.values():
            self._warn_lost(error)
        job = self.run.read().slurm_job
        self._poll = Poll(self.launcher, job, self._newest) if self._plan.launcher == "slurm" else None
        with self._poll or nullcontext():
            status = self._last_status()
        if status is None:
            return self.run.read()
        if stop_failed and status.verdict.state is RunState.FAILED and any(n.finished is None for n in status.nodes):
            for trouble in self.launcher.stop(job, grace_s=GRACE_S):
                self._viewer.say(trouble)
        self._rest()
        return settle(self.run, status.verdict, status.nodes, attempt=status.attempt)

    def _last_status(self) -> Status | None:
        """Print what comes until the run is over; how it stands then, None where its supervisor has written that down."""
        while True:
            self._follow()
            self._newest = self.launcher.attempt()
            if self._attempt < self._newest:
                self._rest()
                self._begin(self._attempt + 1)
                self._viewer.say(f"run {self._plan.run_id} goes on in attempt {self._attempt}")
                continue
            if self._ended():  # by the supervisor's word
                self._rest()
                return None
            queue = self._poll.answer.queue if self._poll else None
            try:
                status = observe.observe(self.run, self._plan, self.launcher, queue)
            except NodesError:
                self._rest()
                raise
            nodes = {**self._nodes, **{node.node: node for node in status.nodes}}
            if self._recordable(status.verdict, list(nodes.values())).state.final:
                return status

    def _rest(self) -> None:
        # who waits for one that is gone waits for all of them at once
        found = each(self._feeds, lambda feed: feed.place.endpoint, limit=int(self._plan.ssh["fanout"]))
        for feed, endpoint in zip(self._feeds, found, strict=True):
            try:
                if isinstance(endpoint, NodeError):
                    raise endpoint
                while lines := feed.read(wait_s=0):
                    self._write(lines)
            except NodeError as error:
                self.lost[feed.place.name] = error
                self._write(feed.gaps(error))
            else:
                self.lost.pop(feed.place.name, None)
        self._write(self._unfinished())

    def _ended(self) -> bool:
        """Whether the record says so; LOST is only the lack of a better word."""
        state = self.run.read().state
        return state.final and state is not RunState.LOST

    def _unfinished(self) -> Iterator[LogLines]:
        """The last lines that no newline ends."""
        for feed in self._feeds:
            yield from feed.rest()

    def _follow(self) -> None:
        """Until the run looks over, and all that was read by then is printed."""
        unheard = {feed.place.name for feed in self._feeds}
        with live(self._feeds) as (arrivals, enough):
            for batches in arrivals:
                self._write(merged(batches))
                for batch in batches:
                    self._take(batch, unheard)
                missing = unheard - self.lost.keys() if self._is_guest else unheard
                if not enough.is_set() and (self._ended() or (not missing and self._turns())):
                    enough.set()

    def _take(self, batch: Batch, unheard: set[str]) -> None:
        name = batch.feed.place.name
        if batch.error is not None:
            if name not in self.lost:
                self._warn_lost(batch.error)
            self.lost[name] = batch.error
            return
        if self.lost.pop(name, None) is not None:
            self._viewer.say(f"{name} is heard again, and read on where it was lost")
        self._nodes |= {node.node: node for node in batch.nodes}
        if not batch.lines or batch.nodes:
            unheard.discard(name)

    def _turns(self) -> bool:
        """Whether the attempt has ended by what was heard, or another one has begun; a change of state goes into the record."""
        queue = None
        if self._poll is not None:
            answer, queue = self._poll.answer, self._poll.answer.queue
            self._newest = answer.attempt
            if self._attempt < self._newest:
                return True
            before, self._told = self._told, answer
            if text := news(before, answer, heard=bool(self._nodes)):
                self._viewer.say(text)
        asked, nodes = self.run.is_asked_to_stop(), list(self._nodes.values())
        verdict = judge(self._plan, nodes, queue, stop_requested=asked)
        if self._is_guest:
            return self._is_quiet(verdict)
        if verdict.state.final and is_launching(self.run.read()):
            return False  # its nodes are still being started, perhaps again on another port
        supervisor = self.run.supervisor()
        if supervisor is not None or not self._ends_failed:
            self._warn_unless_ended(observe.may_still_run(self._plan, verdict, nodes))
        if supervisor is not None and verdict.state is not RunState.DONE:
            return self._ended()  # who supervises sees to the end, and writes it down
        verdict = self._recordable(verdict, nodes)
        if not verdict.state.final and (queue is None or queue.word != SILENT):
            settle(self.run, verdict, attempt=self._attempt)
        return verdict.state.final

    def _recordable(self, verdict: Verdict, nodes: Sequence[NodeObservation]) -> Verdict:
        """The verdict, not final as long as a run that has failed may run on and is not ended from here."""
        if self._ends_failed or self._is_guest:
            return verdict
        return observe.recordable_verdict(self._plan, verdict, nodes)

    def _warn_unless_ended(self, left: Sequence[str]) -> None:
        """Say, once, that nobody ends what is left of a run that has failed."""
        text = "" if self._has_warned else observe.still_running_warning(self.run, self._plan.run_id, left)
        if text and not self._ended():
            self._viewer.warn(text)
            self._has_warned = True

    def _is_quiet(self, verdict: Verdict) -> bool:
        """
        Whether nothing of a run that has ended lives on any node that can be heard: all that shows where its supervisor is not.

        An agent that left no end of its own may be just starting, or again on another port, and is waited for.
        """
        living = {name for name, node in self._nodes.items() if node.alive and node.finished is None}
        if not verdict.state.final or living - self.lost.keys():
            self._quiet_since = None
            return False
        self._quiet_since = self._quiet_since or time.monotonic()
        ends = sum(node.finished is not None for node in self._nodes.values())
        return ends == self._plan.node_count or time.monotonic() - self._quiet_since > observe.LATE_WRITES_S

    def _write(self, lines: Iterable[LogLines]) -> None:
        self._viewer.write(self._kept(lines))

    def _kept(self, lines: Iterable[LogLines]) -> Iterator[LogLines]:
        shown = (some for some in lines if some.time >= self._shown_from.get(some.node, 0.0))
        return (kept for kept in map(self._keep, shown) if kept is not None)

    def _warn_lost(self, error: NodeError) -> None:
        self._viewer.warn(f"{error}; trying again, the others go on")
