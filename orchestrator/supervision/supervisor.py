"""
The supervisor of a run over SSH: it polls all agents, and ends all ranks if one fails; then it restarts the run if that may help.

It is part of the process that owns the run (usecases/owner/owner.py). A second one for the same run is refused. Without a
supervisor, the agents continue.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.failure_class import FailureClass
from orchestrator.fanout import map_parallel, successes
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunState
from orchestrator.supervision.answers import Answers
from orchestrator.supervision.poller import Poller
from orchestrator.supervision.queries import Queries, make_folder
from orchestrator.supervision.rank_findings import RankFindings
from orchestrator.supervision.restart import DirectAttempt, OnRecord, Restarts, saves_per_node
from orchestrator.supervision.silence import RETRY_S, Silence
from orchestrator.supervision.spares import Spares
from orchestrator.supervision.termination import EndedAttempt, Termination
from orchestrator.verdict import failing
from orchestrator.verdict.hangs import positions_without_progress, ras_facts
from orchestrator.verdict.judge import Verdict, judge
from orchestrator.verdict.launching import is_launching
from orchestrator.verdict.record_outcome import record_outcome_if_writable
from orchestrator.verdict.separate import SeparateWatch

TICK_S = 0.5
FIRST_KEPT_S, KEEP_EVERY_S = 10.0, 60.0  # of the observations, all of which are written
BACK_EVERY_S = 5.0  # between two decisions whether the run can be restarted without the nodes that are lost
BOOT_S = 15.0  # from when a node that boots is reached until it answers


class Supervisor:
    """Watches the agents of one attempt until it is over, and ends its remaining processes on all nodes."""

    def __init__(
        self,
        folder: RunFolder,
        launcher: DirectLauncher,
        on_record: OnRecord = lambda _record, _nodes: None,
        on_nodes: Callable[[Sequence[NodeObservation]], None] = lambda _: None,
    ) -> None:
        """
        Prepare the supervision of the plan's attempt.

        Args:
            on_record: called with the record and the last observation of each node in every round, and at the end, without nodes: of a run that has
                failed, once it is diagnosed.
            on_nodes: called with the last observation of each node in every round.
        """
        self._folder = folder
        self._on_record = on_record
        self._on_nodes = on_nodes
        self._launcher = launcher
        self._plan: LaunchPlan = folder.read_plan()
        self._poller = Poller(folder, self._plan, launcher)
        self._states = self._poller.states
        self._spares = Spares(folder, launcher, self._rendezvous_if_prepared)
        self._answers = Answers(self._plan, launcher, self._states)
        self._without_progress = False
        self._ras = ""
        self._polled_until_s = 0.0
        """When the last heartbeat was sent, by time.monotonic()."""
        self._separate_watch = SeparateWatch(self._plan)
        self._rank_findings = RankFindings(folder)
        self._keep_due_s = time.monotonic() + FIRST_KEPT_S
        self._silence = Silence(folder, self._plan, launcher, self._poller)
        self._termination = Termination(folder, self._plan, launcher, self._poller)
        self.cleanup: threading.Thread | None = None
        """Ends what is left on lost nodes if they answer, while the next attempt runs; None if that is not needed."""

    def run(
        self, on_start: Callable[[], None], on_failed: Callable[[], None], restarts: Restarts | None = None
    ) -> bool:
        """
        Supervise the attempt until the run's record is final, no node can be polled any more, or the next attempt has begun.

        Args:
            on_start: called once the threads of supervision run: it may start others, if the user may have more.
            on_failed: called once a failure is recorded.
            restarts: decides after a failed attempt; None: there is no other attempt.

        Returns:
            True if another attempt has begun.
        """
        next_attempts = restarts.prepared(self._plan) if restarts is not None else None
        self._poller.prepares_restart = next_attempts is not None
        with (
            self._poller.running(),
            self._spares.kept(next_attempts),
            Queries(self._folder, self._answers.by_kind).answered(),
        ):
            on_start()
            verdict = self._until_over()
            self._answers.is_over = True
            if verdict is not None:
                self._poller.stop()
                self._spares.stop()
                self._polled_until_s = time.monotonic()
                return self._finish(verdict, on_failed, restarts)
        self._folder.add_event("run-unsupervised", "no node can be polled any more; orch status queries them once more")
        return False

    def _finish(self, verdict: Verdict, on_failed: Callable[[], None], restarts: Restarts | None) -> bool:
        """End the attempt, and restart the run or record its outcome; return whether it was restarted."""
        if verdict.state is RunState.DONE and self._plan.program.until_head:
            verdict = self._termination.end(verdict).verdict
        if verdict.state is RunState.DONE:
            self._end_standbys(name for name in self._states if name in self._poller.prepared)
            self._record(verdict)
            return False
        self._keep_failure(verdict)
        ended = self._termination.end(verdict)
        verdict, unreached = ended.verdict, ended.unreached
        self._keep_failure(verdict)
        if restarts is not None and verdict.state is RunState.FAILED and not self._is_over():
            reason = self._restart(restarts, ended)
            if not reason:
                # without a cleanup, what was left on the lost nodes that answer again has been ended before the restart
                left = () if self.cleanup is None else unreached
                excluded = {node.name for node in (*self._launcher.plan.nodes, *left)}
                self._end_standbys(self._states, excluded)
                return True
            self._folder.add_event("not-restarted", reason)
            is_stopped = self._folder.is_stop_requested()  # while the next attempt was being prepared
            state = RunState.STOPPED if is_stopped else verdict.state
            verdict = replace(verdict, state=state, message="; ".join(filter(None, (verdict.message, reason))))
        self._end_standbys(self._states, excluded={node.name for node in unreached})
        self._record(verdict)

        def report() -> None:
            if self._folder.read().state is RunState.FAILED:
                on_failed()
            self._on_record(self._folder.read(), ())

        if unreached:  # a diagnosis takes seconds, in which a node that answers again must not keep its ranks
            works: list[Callable[[], None]] = [
                report,
                partial(self._termination.free_returning_nodes, unreached, lambda _: False),
            ]
            successes(map_parallel(works, lambda work: work(), limit=2))
        else:
            report()
        return False

    def _keep_failure(self, verdict: Verdict, waits: str | None = None) -> None:
        """Record the failure of the attempt before and while its ranks are ended, and what the next attempt waits for."""
        if verdict.state in (RunState.FAILED, RunState.LOST):
            with contextlib.suppress(OSError):  # a full disk must not end the supervision
                self._folder.update(failing=failing.to_json(verdict, self._plan.attempt, waits))

    def _end_standbys(self, names: Iterable[str], excluded: Collection[str] = ()) -> None:
        """End what waits for another attempt, and free the memory that is kept for it, on connected nodes of these and on spare ones, but `excluded`."""
        states = [self._states[name] for name in names]
        connected = [state.node for state in states if self._launcher.connected_endpoint(state.node) is not None]
        nodes = [node for node in (*connected, *self._spares.nodes) if node.name not in excluded]
        map_parallel(nodes, self._launcher.end_standby, limit=max(1, len(nodes)))

    def _rendezvous_if_prepared(self) -> str | None:
        """The rendezvous of the attempt, once all its nodes prepare a restart; None before."""
        head = self._states[self._plan.head.name].observation
        is_prepared = len(self._poller.prepared) == len(self._states)
        return head.agent.rendezvous if is_prepared and head is not None and head.agent is not None else None

    def _is_over(self) -> bool:
        """True if the user stops the run, or a command has recorded its end."""
        return self._folder.is_stop_requested() or self._folder.read().state.ended

    def _restart(self, restarts: Restarts, ended: EndedAttempt) -> str:
        """Restart the run once nothing of the attempt can be running; return why it is not restarted, or empty."""
        cut_off = {node.name for node in ended.unreached}
        attempt = self._attempt(ended, cut_off, cut_off)
        if reason := restarts.reason_against(ended.verdict, attempt):
            return reason
        if self._may_leave_ranks(ended):
            reason = self._restart_at_once(restarts, ended, attempt)
            if not reason or self._folder.read().attempt > self._plan.attempt:
                return reason
            self._folder.add_event("restart-put-off", f"{reason}; {fold(cut_off)} may answer again")
        wait_s = self._silence.isolation_wait_s(ended.unreached, self._polled_until_s) if ended.unreached else 0.0
        deadline_s = time.monotonic() + max(wait_s, self._plan.wait_for_nodes_s)
        if ended.unreached:
            can_replace = restarts.can_replace(self._launcher.plan, attempt)
            self._report_wait(ended, wait_s, deadline_s, can_replace=can_replace)
        isolated = self._silence.isolated(cut_off, ended.refusing)

        def is_over() -> bool:
            nonlocal isolated
            # a node that reaches the head measures from 0 again
            isolated &= self._silence.isolated(cut_off, ended.refusing)
            return self._is_over()

        unreached, running = self._until_isolated(ended.unreached, wait_s, is_over)
        isolated &= self._silence.isolated({node.name for node in unreached}, ended.refusing)

        def can_restart(lost: set[str]) -> bool:
            attempt = self._attempt(ended, lost, cut_off)
            return lost <= isolated and restarts.can_replace(self._launcher.plan, attempt)

        # a node that boots is reached by the head some time before it answers
        deadline_s = max(deadline_s, time.monotonic() + BOOT_S) if unreached else deadline_s
        unreached, refusing = self._until_back(unreached, deadline_s, can_restart)
        if self._is_over():
            return "not restarted: it was stopped"
        lost = {node.name for node in unreached}
        if may_run := ended.running | running | refusing | (lost - isolated):
            return f"not restarted: processes of the run may still run on {fold(may_run)}"
        attempt = self._attempt(ended, lost, cut_off)
        reason = restarts.begin(self._launcher.plan, ended.verdict, attempt, self._on_record)
        return (
            f"{reason}; waited for {self._plan.wait_for_nodes_s:.0f} s (--wait-for-nodes)"
            if reason and lost
            else reason
        )

    def _report_wait(self, ended: EndedAttempt, wait_s: float, deadline_s: float, *, can_replace: bool) -> None:
        """Record and log what the next attempt waits for, and until when."""
        names, begins = fold(node.name for node in ended.unreached), f"attempt {self._plan.attempt + 1} begins when"
        answers, it = ("answers", "it") if len(ended.unreached) == 1 else ("answer", "they")
        until = time.strftime(
            "%H:%M:%S", time.localtime(time.time() + (wait_s if can_replace else deadline_s - time.monotonic()))
        )
        if can_replace:
            text = f"{begins} {names} {answers}, at the latest at {until}, without {'it' if it == 'it' else 'them'}"
        else:
            text = f"{begins} {names} {answers}; the run ends if {it} {'does' if it == 'it' else 'do'} not by {until} (--wait-for-nodes)"
        self._folder.add_event("restart-waits", text)
        self._keep_failure(ended.verdict, text)

    def _until_back(
        self, unreached: Sequence[NodePlan], deadline_s: float, can_restart: Callable[[set[str]], bool]
    ) -> tuple[Sequence[NodePlan], frozenset[str]]:
        """Wait for lost nodes until the run can be restarted without those that are still lost; returns as Termination.end_returning_nodes."""
        running = frozenset[str]()
        lost = {node.name for node in unreached}
        kept = [node for node in self._plan.nodes if node.name not in lost]
        with self._launcher.kept_alive([*kept, *self._spares.nodes]):
            while (
                lost and not running and not can_restart(lost) and time.monotonic() < deadline_s and not self._is_over()
            ):
                wait_s = min(BACK_EVERY_S, deadline_s - time.monotonic())
                unreached, running = self._termination.end_returning_nodes(unreached, wait_s, self._is_over)
                lost = {node.name for node in unreached}
        return unreached, running

    def _attempt(self, ended: EndedAttempt, lost: Collection[str], cut_off: Collection[str]) -> DirectAttempt:
        per_node = saves_per_node(self._plan)
        return DirectAttempt.of(ended.verdict, self._poller.observations(), lost, cut_off, saves_per_node=per_node)

    def _may_leave_ranks(self, ended: EndedAttempt) -> bool:
        """
        True if the next attempt may begin although ranks of the lost nodes may still run: they can do nothing without rank 0.

        The program declares that in the progress of rank 0. The node of rank 0 must reach none of the lost nodes, so that they end their
        ranks themselves, and on all others, also on that of rank 0, nothing must be left.
        """
        head = self._states[self._plan.head.name]
        progress = {} if head.observation is None else head.observation.progress.get(0, {})
        lost = {node.name for node in ended.unreached}
        unqueried = {name for name in lost if self._states[name].unreached_s is None}
        return (
            progress.get("restart_at_once") is True
            and self._plan.isolation_timeout_s is not None
            and bool(lost)
            and head.node.name not in lost
            and not ended.running
            and not any(map(self._silence.is_stopped, lost))
            and unqueried == self._silence.isolated(unqueried, ended.refusing)
        )

    def _restart_at_once(self, restarts: Restarts, ended: EndedAttempt, attempt: DirectAttempt) -> str:
        """Restart the run on other nodes, and end what is left on the lost ones if they answer; return why it is not restarted, or empty."""
        names, head = fold(node.name for node in ended.unreached), self._plan.head.name
        remark = f"it does not wait for {names}, whose ranks save nothing without rank 0, which has ended on {head}"
        reason = restarts.begin(self._launcher.plan, ended.verdict, attempt, self._on_record, remark=remark)
        if not reason:
            text = f"ranks may still run on {names}: they end within {self._termination.return_s:.0f} s, or as soon as it answers"
            self._folder.add_event("ranks-left", text)
            work = partial(self._termination.free_returning_nodes, ended.unreached, self._is_used)
            thread = threading.Thread(target=work, daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: the nodes end their ranks themselves
                thread.start()
                self.cleanup = thread
        return reason

    def _is_used(self, name: str) -> bool:
        """True if the newest attempt runs on this node."""
        return any(node.name == name for node in self._launcher.plan.nodes)

    def _until_isolated(
        self, unreached: Sequence[NodePlan], wait_s: float, is_over: Callable[[], bool]
    ) -> tuple[Sequence[NodePlan], frozenset[str]]:
        """Wait until nodes that are cut off have ended their ranks themselves; returns as Termination.end_returning_nodes."""
        if not unreached:
            return (), frozenset()
        lost = {node.name for node in unreached}
        kept = [node for node in self._plan.nodes if node.name not in lost]
        with self._launcher.kept_alive([*kept, *self._spares.nodes]):
            return self._termination.end_returning_nodes(unreached, wait_s, is_over)

    def _until_over(self) -> Verdict | None:
        """The verdict that ends the run; None if no node can be polled any more."""
        while True:
            self._poller.changed.wait(TICK_S)
            self._poller.changed.clear()
            self._poller.check()
            self._on_nodes(self._poller.observations())
            # none is expected of a node that refused the login, or whose agent has finished; read before the judgement: a node that finishes
            # later is judged in the next round
            no_news = all(
                state.login_refused or (state.observation is not None and state.observation.finished is not None)
                for state in self._states.values()
            )
            record = self._folder.read()
            if record.state.ended:
                return Verdict(record.state, record.exit, record.message)
            self._on_record(record, self._poller.observations())
            self._rank_findings.record(record, self._poller.observations())
            self._keep_observations()
            if self._answers.is_stopping:
                continue
            verdict = self._separate() or self._judge()
            launched = not is_launching(record)
            if verdict is not None and verdict.state.final and launched:
                return verdict
            if verdict is not None and not verdict.state.final:
                record_outcome_if_writable(self._folder, verdict)
            self._record_hang()
            verdict = self._silence.node_gone()
            if verdict is not None:
                return verdict
            if no_news and launched:
                return None

    def _separate(self) -> Verdict | None:
        """The verdict if the ranks train separately, although one training was launched."""
        message = self._separate_watch.message(self._poller.observations())
        failure = (FailureClass.CONFIG, FailureClass.CONFIG.retry)
        return Verdict(RunState.FAILED, message=message, failure=failure) if message else None

    def _judge(self) -> Verdict | None:
        """Judge the observations so far; None if they do not suffice yet."""
        nodes = self._poller.observations()
        verdict = judge(self._plan, nodes, None, stop_requested=self._folder.is_stop_requested())
        # of a supervisor that has died while it ended the attempt
        verdict = failing.known_failure(self._folder.read(), verdict, self._plan.attempt)
        if verdict.state is RunState.LOST and len(nodes) < len(self._states):
            return None
        return verdict

    def _keep_observations(self) -> None:
        """Keep the last observation of each node from time to time, for commands that the node does not answer later."""
        now_s = time.monotonic()
        if now_s < self._keep_due_s:
            return
        self._keep_due_s = now_s + KEEP_EVERY_S
        answers = [(state.observation, time.time() - now_s + state.answered_s) for state in self._states.values()]
        kept = {node.node: (at_s, asdict(node)) for node, at_s in answers if node is not None}
        self._folder.keep_observations(kept, self._plan.attempt)

    def _record_hang(self) -> None:
        """Record once that no rank makes progress, and which ranks and which silent nodes the others wait for."""
        silent = [name for name, state in self._states.items() if state.failure is not None]
        text = positions_without_progress(self._poller.observations())
        if text and not self._without_progress:
            no_answer = f"; {fold(silent)} {'does' if len(silent) == 1 else 'do'} not answer" if silent else ""
            self._folder.add_event("no-progress", f"the ranks make no progress: {text}{no_answer}")
        self._without_progress = bool(text)
        ras = ras_facts(self._poller.observations())
        if ras and ras != self._ras:
            self._folder.add_event("nccl-ras", ras)
        self._ras = ras

    def _record(self, verdict: Verdict) -> None:
        record, unwritten = record_outcome_if_writable(
            self._folder, verdict, self._poller.observations(), attempt=self._plan.attempt
        )
        while unwritten:  # as long as the disk is full, the run is unfinished for every other command
            time.sleep(RETRY_S)
            record, unwritten = record_outcome_if_writable(
                self._folder, verdict, self._poller.observations(), attempt=self._plan.attempt
            )
        self._folder.add_event("run-ended", f"{record.state.value}: {record.message or 'nothing is left running'}")


def _continue() -> None:
    """The log viewer of the first attempt follows the next attempts, too."""


def _hooks_run(folder: RunFolder) -> AbstractContextManager[OnRecord]:
    """Run the hooks of the run in this context; its value takes each record that was read."""
    hooks = folder.read_plan().hooks
    if not hooks:
        return contextlib.nullcontext(lambda _record, _nodes: None)
    from orchestrator.supervision.hooks import running_hooks  # few runs have hooks, and need urllib and email

    return running_hooks(folder, hooks)


def supervise(
    folder: RunFolder,
    launcher: DirectLauncher,
    on_start: Callable[[], None],
    on_failed: Callable[[], None],
    *,
    restarts: Restarts | None = None,
    on_nodes: Callable[[Sequence[NodeObservation]], None] = lambda _: None,
) -> bool:
    """
    Supervise a run to its end; return whether no other process does.

    Args:
        on_start: called when this process supervises the run.
        on_failed: called once the failure of the run is recorded.
        restarts: as for Supervisor.run.
        on_nodes: as for Supervisor.
    """
    try:
        with folder.supervision() as is_ours:
            if is_ours:
                folder.add_event("supervisor-started", f"pid {os.getpid()} supervises")
                with contextlib.suppress(OSError):  # a full disk must not end the supervision
                    folder.update(unsupervised={})
                make_folder(folder)
                with _hooks_run(folder) as on_record:
                    cleanups = list[threading.Thread]()
                    supervisor = Supervisor(folder, launcher, on_record, on_nodes)
                    while supervisor.run(on_start, on_failed, restarts):
                        on_start = _continue
                        cleanups += [supervisor.cleanup] if supervisor.cleanup is not None else []
                        supervisor = Supervisor(folder, launcher, on_record, on_nodes)
                for cleanup in cleanups:
                    cleanup.join()
            return is_ours
    except Exception as error:
        traceback.print_exc()  # in supervisor.log
        cause = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # a full disk may be the cause
            folder.add_event("supervisor-failed", f"{cause}; the supervisor has ended, see supervisor.log")
        raise
