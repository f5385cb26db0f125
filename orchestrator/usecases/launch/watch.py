"""Watches a run to its end: follows the logs of all attempts; without a supervisor, judges how the run ended, and records its outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from enum import Enum, auto

from orchestrator.backoff import backoff
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.launchers.job import SILENT, JobStatus
from orchestrator.launchers.slurm.poll import Poll, PollResult, change_message, describe_job
from orchestrator.logs.selection import Selection
from orchestrator.node.number_text import counted
from orchestrator.plan.plan import GRACE_S, LaunchPlan
from orchestrator.portable.names.hostlist import fold, fold_last_number
from orchestrator.records.run_folder import KeptRun
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.reports.log_reader import LogReader, Viewer
from orchestrator.verdict import observe
from orchestrator.verdict.failing import waits
from orchestrator.verdict.judge import Verdict, judge
from orchestrator.verdict.last_lines import with_last_lines
from orchestrator.verdict.launching import is_launching
from orchestrator.verdict.live import LiveRuns
from orchestrator.verdict.live_run import LiveRun
from orchestrator.verdict.missing_files import explain_by_nodes
from orchestrator.verdict.observe import Status
from orchestrator.verdict.record_outcome import record_outcome
from orchestrator.verdict.replicas import differing_replicas
from orchestrator.verdict.slow_ranks import NONE_SLOW, SlowRankWatch

LIVE_EVERY_S = 0.5
RECORD_POLL_S = 0.02  # at first, once the logs have ended


def watched_lines(*, quiet: bool, all_ranks: bool = False) -> Selection:
    """The lines to show of a run that is watched: no events that every successful run has, and no events at all if `quiet`."""
    return Selection(has_events=not quiet, has_routine=False, has_rank_metrics=all_ranks)


class WatchPhase(Enum):
    """The step after the logs of an attempt have been followed."""

    NEXT_ATTEMPT = auto()
    """A newer attempt has begun: follow that."""
    OTHER_NODES = auto()
    """The attempt is started on other nodes, as the start on one has failed: follow these."""
    RECORDED = auto()
    """The run's supervisor has recorded its end: show the rest."""
    CONFIRM = auto()
    """The attempt appears to have ended: query the nodes, and continue to follow it if it has not."""


class Watch:
    """Follows one run to its end."""

    def __init__(
        self,
        run: KeptRun,
        launcher: Launcher,
        reader: LogReader,
        viewer: Viewer,
        *,
        ends_failed: bool,
        observed: Callable[[], Iterable[NodeObservation]] | None = None,
    ) -> None:
        """
        Prepare to watch the run.

        Args:
            ends_failed: if one node has failed, end the others; False for a command that only reads.
            observed: returns the supervisor's last observation of each node; None if this process has no supervisor.
        """
        self._run = run
        self._launcher = launcher
        self._reader = reader
        self._viewer = viewer
        self._plan: LaunchPlan = run.read_plan()
        self._ends_failed = ends_failed
        self._supervisor_unknown = not self._plan.by_scheduler and not run.is_recorded
        """Another machine launched the run over SSH; this machine cannot find out whether it has a supervisor."""
        self._poll: Poll | None = None
        self._shown_result = PollResult(None, 1)
        """The last poll result that was shown."""
        self._agents_since_s = math.inf
        """When the first node of the attempt was observed, by time.monotonic()."""
        self._ended_s: float | None = None
        """When a run with an unknown supervisor began to appear ended, by time.monotonic()."""
        self._has_warned = False
        self._has_warned_of_replicas = False
        self._slow_ranks = SlowRankWatch()
        self._decision = ""
        """The decision by which the attempt that is followed was begun, and its nodes chosen."""
        self._observed = observed
        self._live_runs = LiveRuns()
        self._live_due_s = 0.0
        """By time.monotonic()."""
        self._shown_live: LiveRun | None = None
        self._shown_wait: str | None = None
        self._shown_slow: str | None = None
        """The finding about slow ranks that was shown last; None if it was that no rank is slow any more."""

    def to_end(self) -> RunRecord:
        """
        Show the logs until the run ends; return its record.

        Raises:
            NodesError: the run appears to have ended, but unreachable nodes leave its outcome open.
        """
        for error in self._reader.unreadable.values():
            self._reader.warn_unreadable(error)
        job = self._run.read().slurm_job
        if self._plan.by_scheduler:
            self._poll = Poll(self._launcher, job, self._launcher.attempt())
        with self._poll or nullcontext():
            status = self._last_status()
        if status is None:
            return self._run.read()
        has_failed = status.verdict.state is RunState.FAILED
        if self._ends_failed and has_failed and any(node.finished is None for node in status.nodes):
            for warning in self._launcher.stop(job, grace_s=GRACE_S):
                self._viewer.warn(warning)
        self._show_remaining()
        verdict = explain_by_nodes(status.verdict, self._plan, self._launcher, status.attempt)
        verdict = with_last_lines(verdict, self._launcher, status.attempt)
        record = record_outcome(self._run, verdict, status.nodes, attempt=status.attempt)
        self._warn_of_replicas(record.replicas)  # the supervisor may not have seen them
        return record

    def _last_status(self) -> Status | None:
        """Follow all attempts to the end of the run; return its status, or None if its supervisor has recorded the end."""
        while True:
            phase = self._reader.follow(self._next_phase) or WatchPhase.CONFIRM
            if phase is WatchPhase.CONFIRM:
                phase = self._until_recorded()
            if phase is WatchPhase.NEXT_ATTEMPT:
                self._show_remaining()
                self._reader.begin(self._reader.attempt + 1)
                self._plan = self._run.read_plan()
                self._viewer.inform(f"run {self._plan.run_id} continues in attempt {self._reader.attempt}")
            elif phase is WatchPhase.OTHER_NODES:
                self._plan = self._run.read_plan()
                self._reader.renew()
            elif phase is WatchPhase.RECORDED:
                self._show_remaining()
                return None
            else:
                status = self._confirmed_status()
                if status is not None:
                    return status

    def _until_recorded(self) -> WatchPhase:
        """Wait for the next phase of an attempt that appears to have ended; CONFIRM if no supervisor judges and records that."""
        pauses = backoff(observe.POLL_S, RECORD_POLL_S)
        while True:
            if self._reader.attempt < self._newest_attempt():
                return WatchPhase.NEXT_ATTEMPT
            if (phase := self._recorded_phase()) is not None:
                return phase
            if not self._is_supervised():
                return WatchPhase.CONFIRM
            time.sleep(next(pauses))

    def _is_supervised(self) -> bool:
        """True if a supervisor observes the nodes; then they are not observed a second time for this command."""
        supervisor = self._run.supervisor() if self._poll is None else None
        is_supervised = supervisor is not None and observe.stopped_pid(supervisor) is None
        self._reader.observe(nodes=not is_supervised)
        return is_supervised

    def _confirmed_status(self) -> Status | None:
        """Query the nodes; return the status if the run has ended, else None."""
        queue = self._poll.result().status if self._poll else None
        try:
            status = observe.observe_run(self._run, self._plan, self._launcher, queue)
        except NodesError:
            self._reader.show_remaining()
            raise
        if observe.is_left_to_supervisor(self._run, self._plan, status.verdict):
            time.sleep(observe.POLL_S)  # the attempt is followed again, and its logs have been read to their ends
            return None
        nodes = {**self._reader.nodes, **{node.node: node for node in status.nodes}}
        return status if self._recordable(status.verdict, list(nodes.values())).state.final else None

    def _newest_attempt(self) -> int:
        """The number of the newest attempt; over SSH by the record, which has the plan of each."""
        if isinstance(self._launcher, DirectLauncher) and self._launcher.attempt() < self._run.read().attempt:
            self._launcher.learn_attempt(self._run.read_plan())
        return self._launcher.attempt()

    def _has_other_nodes(self) -> bool:
        """True if the attempt that is followed was begun a second time, on other nodes; over SSH, by the record."""
        attempts = self._run.read().attempts
        decision = str(attempts[-1]["decision"]) if attempts else ""
        if decision == self._decision or not isinstance(self._launcher, DirectLauncher):
            return False
        self._decision, plan = decision, self._run.read_plan()
        self._launcher.learn_attempt(plan)
        return self._reader.attempt == plan.attempt and self._reader.folder_names != {node.name for node in plan.nodes}

    def _has_recorded_end(self) -> bool:
        """True if the run has ended, by its record; warns of what the supervisor has recorded about its ranks."""
        record = self._run.read()
        self._warn_of_replicas(record.replicas)
        if self._poll is None:
            self._show_slow_ranks(record.slow)
        self._show_wait(record)
        self._show_live(record)
        return record.state.ended

    def _next_phase(self) -> WatchPhase | None:
        """Return the next phase, judged by the logs and observations so far; None to continue following the attempt."""
        phase = self._recorded_phase()
        if phase is not None or self._is_supervised():
            return phase
        if self._reader.pending - (self._reader.unreadable.keys() if self._supervisor_unknown else set()):
            return None
        if self._poll is None:
            return self._judged(None)
        result = self._poll.result()
        if self._reader.attempt < result.attempt:
            return WatchPhase.NEXT_ATTEMPT
        if not self._reader.nodes:
            self._agents_since_s = math.inf
        elif math.isinf(self._agents_since_s):
            self._agents_since_s = time.monotonic()
        if result.is_outdated(self._agents_since_s):
            return self._judged(JobStatus(SILENT))
        text = change_message(self._shown_result, result, has_log=bool(self._reader.nodes))
        self._shown_result = result
        if text:
            self._viewer.inform(text)
        return self._judged(result.status)

    def _recorded_phase(self) -> WatchPhase | None:
        """The next phase by the record alone; None if it has no news of the attempt."""
        has_ended = self._has_recorded_end()  # read first: whatever was recorded before the end is shown before it
        if self._poll is None and self._reader.attempt < self._newest_attempt():
            return WatchPhase.NEXT_ATTEMPT
        if self._has_other_nodes():
            return WatchPhase.OTHER_NODES
        return WatchPhase.RECORDED if has_ended else None

    def _judged(self, queue: JobStatus | None) -> WatchPhase | None:
        """Judge the attempt and record a change of state; CONFIRM if it appears to have ended."""
        nodes = list(self._reader.nodes.values())
        if self._poll is not None and not self._has_warned_of_replicas:  # over SSH the supervisor compares them
            differing = differing_replicas(nodes)
            self._warn_of_replicas(None if differing is None else str(differing))
        if self._poll is not None and (change := self._slow_ranks.change(nodes)):
            self._show_slow_ranks(change.text)
        verdict = judge(self._plan, nodes, queue, stop_requested=self._run.is_stop_requested())
        if self._supervisor_unknown:
            return WatchPhase.CONFIRM if self._has_stayed_ended(verdict) else None
        if verdict.state.final and is_launching(self._run.read()):
            return None  # its nodes are still being started, perhaps a second time, on another port
        supervisor = self._run.supervisor()
        if supervisor is not None or not self._ends_failed:
            self._warn_unless_ended(observe.may_still_run(self._plan, verdict, nodes))
        if supervisor is not None and verdict.state is not RunState.DONE:
            return None  # the supervisor ends the run and records that
        verdict = self._recordable(verdict, nodes)
        if verdict.state.final:
            return WatchPhase.CONFIRM
        if queue is None or queue.state != SILENT:
            record_outcome(self._run, verdict, attempt=self._reader.attempt)
        return None

    def _recordable(self, verdict: Verdict, nodes: Sequence[NodeObservation]) -> Verdict:
        """Return the verdict; not final while a failed run may still run on some nodes and this command does not end it."""
        if self._ends_failed or self._supervisor_unknown:
            return verdict
        return observe.recordable_verdict(self._plan, verdict, nodes)

    def _warn_unless_ended(self, left: Sequence[str]) -> None:
        """Warn, once, that no supervisor ends the remaining processes of a failed run."""
        text = "" if self._has_warned else observe.still_running_warning(self._run, self._plan.run_id, left)
        if text and not self._has_recorded_end():
            self._viewer.warn(text)
            self._has_warned = True

    def _warn_of_replicas(self, finding: str | None) -> None:
        """Warn, once, that ranks have different copies of the model."""
        if finding is not None and not self._has_warned_of_replicas:
            self._viewer.warn(finding)
            self._has_warned_of_replicas = True

    def _show_remaining(self) -> None:
        """Show the rest of the attempt's lines, and in one line the nodes whose ranks were ended on request."""
        self._reader.show_remaining()
        if self._reader.ended:
            self._viewer.inform(f"ended on {fold(sorted(self._reader.ended))}")
        self._reader.ended.clear()
        if repeated := self._reader.repeated_failures:
            nodes = fold(sorted({node for node, _ in repeated}))
            ranks = fold_last_number(sorted({rank for _, rank in repeated}, key=int)).strip("[]")
            self._viewer.inform(f"{counted(len(repeated), 'more rank')} failed in the same way: {ranks} on {nodes}")
        repeated.clear()

    def _show_wait(self, record: RunRecord) -> None:
        """Show what the next attempt waits for, when that changes."""
        text = waits(record)
        if text and text != self._shown_wait and record.failing is not None:
            self._viewer.inform("; ".join(filter(None, (record.failing["message"], text))))
        self._shown_wait = text

    def _show_live(self, record: RunRecord) -> None:
        """Show the present state of the run, when it changes."""
        if time.monotonic() < self._live_due_s:
            return
        self._live_due_s = time.monotonic() + LIVE_EVERY_S
        queue = None
        if self._poll is not None and (status := self._poll.result().status) is not None and status.waits:
            queue = describe_job(status, self._poll.result().position)
        observed = self._observed() if self._observed is not None else self._reader.nodes.values()
        names = sorted(self._reader.nodes) if self._plan.by_count else [node.name for node in self._plan.nodes]
        live = self._live_runs.now(record, observed, names, queue)
        if live != self._shown_live:
            self._shown_live = live
            self._viewer.show(live)

    def _show_slow_ranks(self, finding: str | None) -> None:
        """Warn of ranks that are slow, if they are not those that were shown last; or inform that none is any more."""
        if finding == self._shown_slow:
            return
        self._shown_slow = finding
        if finding is None:
            self._viewer.inform(NONE_SLOW)
        else:
            self._viewer.warn(finding)

    def _has_stayed_ended(self, verdict: Verdict) -> bool:
        """
        Report whether no reachable node has had a live agent for LATE_WRITES_S, or every agent has recorded its end.

        An agent without a recorded end may still be starting, perhaps a second time, on another port.
        """
        living = {name for name, node in self._reader.nodes.items() if node.alive and node.finished is None}
        if not verdict.state.final or living - self._reader.unreadable.keys():
            self._ended_s = None
            return False
        if self._ended_s is None:
            self._ended_s = time.monotonic()
        ends = sum(node.finished is not None for node in self._reader.nodes.values())
        return ends == self._plan.node_count or time.monotonic() - self._ended_s > observe.LATE_WRITES_S
