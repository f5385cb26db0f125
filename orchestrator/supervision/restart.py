"""Restart a run over SSH after a failed attempt, by the rules of node/run/retry.py: decide, plan the next attempt, and start it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TypeAlias

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError, OrchError
from orchestrator.failure_class import FailureClass
from orchestrator.launch.planned import Launched
from orchestrator.launch.start import NextAttempts
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.node.run.events import NO_RETRY, REQUEUE, State
from orchestrator.node.run.retry import (
    choose_nodes,
    has_saved,
    newest_saved,
    newest_step,
    reason_against_restart,
    reason_without_progress,
    reports_exhausted_memory,
    retry_may_help,
    saved_step,
)
from orchestrator.plan.elastic import on_nodes
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.cache.nodes import keep_end
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord, RunState
from orchestrator.verdict.classify import classify
from orchestrator.verdict.judge import Verdict

OnRecord: TypeAlias = Callable[[RunRecord, Sequence[NodeObservation]], None]
"""Takes a record that was read or written, and the last observation of each node of the attempt."""


@dataclass(frozen=True, slots=True)
class DirectAttempt:
    """A failed attempt over SSH, whose processes have been ended on the nodes that can be reached; see EndedAttempt."""

    saved: int | None
    step: int | None
    started: frozenset[str]
    lost: frozenset[str]
    broken: frozenset[str]
    first_failed_node: str | None
    no_retry: bool
    savers: frozenset[str] = frozenset()
    """The nodes whose ranks have reported a saved step."""
    requeues: int = 0
    was_warned: bool = False

    @classmethod
    def of(
        cls,
        verdict: Verdict,
        nodes: Sequence[NodeObservation],
        lost: Collection[str],
        cut_off: Collection[str],
        *,
        saves_per_node: bool = False,
    ) -> DirectAttempt:
        """
        The attempt by the last observation of each node.

        Args:
            lost: the nodes that still cannot be reached.
            cut_off: the lost nodes, and the nodes that could not be reached when the attempt failed.
            saves_per_node: see `saves_per_node`. Then only a step that each rank that saves has saved can be resumed.
        """
        reports = [(node.node, progress) for node in nodes for progress in node.progress.values()]
        savers = frozenset(node for node, progress in reports if has_saved(progress))
        counted = [progress for _, progress in reports if has_saved(progress) or not (saves_per_node and savers)]
        steps = [step for step in map(saved_step, counted) if step is not None]
        killed = {node.node for node in nodes if node.agent is not None and not cut_off and _was_killed(node)}
        codes = {node.first_failure.code for node in nodes if node.first_failure is not None}
        return cls(
            saved=(min if saves_per_node else max)(steps, default=None),
            step=newest_step(progress for node in nodes for progress in node.progress.values()),
            started=frozenset(node.node for node in nodes if node.agent is not None),
            lost=frozenset(lost),
            broken=frozenset({*cut_off, *killed}),
            first_failed_node=verdict.exit.node if verdict.exit is not None and not cut_off else None,
            no_retry=NO_RETRY in codes or _is_out_of_memory(verdict),
            savers=savers,
        )


def saves_per_node(plan: LaunchPlan) -> bool:
    """True if each node may have saved states that no other node sees. In the shared trainer, rank 0 saves for all."""
    return not plan.is_shared and len(plan.used_nodes) > 1 and plan.program.kind != "trainer"


def _was_killed(node: NodeObservation) -> bool:
    """True if the agent ended without an exit of a rank as the cause."""
    if node.finished is None:
        return not node.alive
    return node.finished.state == State.FAILED and node.finished.exit is None and bool(node.ranks)


def _is_out_of_memory(verdict: Verdict) -> bool:
    """True if a rank's memory was exhausted: it would be again."""
    failure, exit_ = classify(verdict), verdict.exit
    texts = () if exit_ is None else (exit_.error or "", *exit_.lines)
    return (failure is not None and failure.kind is FailureClass.MEMORY) or any(map(reports_exhausted_memory, texts))


class Restarts:
    """The restarts of one run, by the process that owns it."""

    def __init__(
        self,
        folder: RunFolder,
        max_retries: int,
        next_attempts: NextAttempts | None,
        *,
        at_any_step: bool = False,
        unable: str = "",
        attempts: Sequence[DirectAttempt] = (),
    ) -> None:
        """
        Prepare for the present attempt to fail.

        Args:
            next_attempts: None if this process cannot start any.
            at_any_step: as for `retry_may_help`.
            unable: the reason why it cannot.
            attempts: the failed attempts before it; if another process has restarted the run, the record has them.
        """
        self._folder = folder
        self._max_retries = max_retries
        self._next = next_attempts
        self._at_any_step = at_any_step
        self._unable = unable
        self._attempts = list(attempts)

    @classmethod
    def of(cls, launched: Launched, launcher: DirectLauncher, on_warning: Callable[[str], None]) -> Restarts | None:
        """The restarts of a run that is supervised here; None if it is to have none."""
        folder, planned, plan = launched.folder, launched.planned, launcher.plan
        if not plan.max_retries:
            return None
        if planned is None:
            return cls(folder, plan.max_retries, None, unable=launched.unable_to_restart)
        following = NextAttempts(planned, folder, launcher, on_warning)
        attempts = recorded_attempts(folder)
        return cls(folder, plan.max_retries, following, at_any_step=plan.at_any_step, attempts=attempts)

    def prepared(self, plan: LaunchPlan) -> NextAttempts | None:
        """The next attempts, if the nodes are to prepare the one after this plan's; None if they are not."""
        return self._next if plan.warm and len(self._attempts) < self._max_retries else None

    def reason_against(self, verdict: Verdict, attempt: DirectAttempt) -> str:
        """Why this attempt is not followed by another one; empty if it is."""
        attempts = [*self._attempts, attempt]
        if self._next is None:
            return f"not restarted: {self._unable}"
        if attempt.no_retry:
            if _is_out_of_memory(verdict):
                return "not restarted: memory was exhausted, and would be again"
            return f"not restarted: a rank exited with {NO_RETRY}: a retry cannot help"
        requested = verdict.exit is not None and verdict.exit.code == REQUEUE
        if not requested and not retry_may_help(attempts, at_any_step=self._at_any_step):
            return f"not restarted: {reason_without_progress(attempts, at_any_step=self._at_any_step)}"
        return reason_against_restart(attempts, self._max_retries, at_any_step=self._at_any_step)

    def can_replace(self, plan: LaunchPlan, attempt: DirectAttempt) -> bool:
        """True if there are enough nodes for another attempt without those that this one has lost."""
        self._attempts.append(attempt)
        try:
            return bool(self._choose(plan, ()))
        finally:
            self._attempts.pop()

    def begin(
        self,
        plan: LaunchPlan,
        verdict: Verdict,
        attempt: DirectAttempt,
        on_record: OnRecord = lambda _record, _nodes: None,
        *,
        remark: str = "",
    ) -> str:
        """
        Start the next attempt, after a call of `on_record` with its record; return why it could not be started, or empty.

        Args:
            remark: a part of the sentence that explains the decision.
        """
        self._attempts.append(attempt)
        reason = self._begin(plan, verdict, attempt, on_record, remark=remark)
        if reason:  # the caller may wait for a lost node, and try again
            self._attempts.pop()
        return reason

    def _begin(
        self,
        plan: LaunchPlan,
        verdict: Verdict,
        attempt: DirectAttempt,
        on_record: OnRecord,
        *,
        remark: str,
    ) -> str:
        assert self._next is not None, "see reason_against"
        unusable: dict[str, str] = {}  # spare nodes that cannot be reached or used, and the reasons
        while True:
            names = self._choose(plan, unusable)
            if not names:
                return f"not restarted: {fold(attempt.lost)} cannot be reached, and {self._lack(plan, unusable)}"
            following = _following(plan, names, f"{verdict.message}; {newest_saved(self._attempts)}", remark)
            try:
                self._next.connect(following)
                on_record(self._record(following, verdict, attempt), ())
                self._folder.write_plan(self._next.start(following))
            except NodesError as error:
                names_before = {node.name for node in plan.nodes}
                failed = {
                    failure.node: failure.reason for failure in error.failures if failure.node not in names_before
                }
                if not failed:
                    return f"attempt {following.attempt} could not be started: {error}"
                unusable |= failed
            except OrchError as error:
                return f"attempt {following.attempt} could not be started: {error}"
            else:
                return ""

    def _choose(self, plan: LaunchPlan, unusable: Collection[str]) -> Sequence[str]:
        """The names of the nodes of the next attempt; none if a node is lost that no other can replace, and the run is not elastic."""
        if self._has_lost_checkpoints(plan):
            return ()
        counts = (len(plan.nodes),) if plan.sizes is None else plan.sizes.counts
        attempts = self._attempts
        if not plan.is_shared:  # what a node has saved is on that node alone
            attempts = [replace(attempt, first_failed_node=None) for attempt in attempts]
        replacements = () if self._have_own_states(plan) else (*plan.spares, *plan.replaced)
        nodes = [node for node in (*plan.nodes, *replacements) if node.name not in unusable]
        lost_before = {name for attempt in attempts[:-1] for name in attempt.lost} - attempts[-1].lost
        if len({node.name for node in nodes} - lost_before - attempts[-1].lost) < counts[-1]:
            free = self._next.free_nodes([node for node in nodes if node.name in lost_before]) if self._next else ()
            attempts = [replace(attempt, lost=attempt.lost.difference(free)) for attempt in attempts]
        pool, spares = [node.name for node in nodes], [node.name for node in plan.spares]
        available = len(choose_nodes(pool, counts[-1], attempts, spares))
        count = max((count for count in counts if count <= available), default=0)
        return choose_nodes(pool, count, attempts, spares)

    def _has_lost_checkpoints(self, plan: LaunchPlan) -> bool:
        last = self._attempts[-1]
        is_local = not plan.is_shared and plan.checkpoint_folder is None
        return is_local and plan.head.name in last.lost and any(attempt.saved for attempt in self._attempts)

    def _have_own_states(self, plan: LaunchPlan) -> bool:
        """True if ranks of nodes that share no folder have saved states each for itself: a node that is new would begin at step 0."""
        savers = frozenset[str]().union(*(attempt.savers for attempt in self._attempts))
        return saves_per_node(plan) and not savers <= {plan.head.name}

    def _lack(self, plan: LaunchPlan, unusable: Mapping[str, str]) -> str:
        if self._has_lost_checkpoints(plan):
            return "the checkpoints of rank 0 are on that node alone"
        if self._have_own_states(plan):
            return (
                "its ranks have saved their own states, which a node in its place would lack: it would begin at step 0 and the"
                " others not; if the nodes share the folder of the states, put `workdir` on it, then lost nodes are replaced"
            )
        reasons = [f"{name} cannot take its place: {reason}" for name, reason in unusable.items()]
        lack = " and ".join(reasons) or "no spare node is left"
        if plan.sizes is None:
            return lack
        return f"{lack}; --elastic allows {', '.join(map(str, plan.sizes.counts))} nodes"

    def _record(self, plan: LaunchPlan, verdict: Verdict, attempt: DirectAttempt) -> RunRecord:
        """Record the plan of the next attempt, the end of the last one and the decision; log readers then follow its nodes."""
        failure, record = classify(verdict), self._folder.read()
        outcome = replace(record, attempt=plan.attempt - 1, failure=failure, exit=verdict.exit, message=verdict.message)
        keep_end(self._folder, outcome, plan.earlier[-1])
        self._folder.add_event("run-restarts", plan.restarted)
        self._folder.write_plan(plan)
        ended = {
            "attempt": plan.attempt - 1,
            "ended": datetime.now(timezone.utc).isoformat(),
            "message": verdict.message,
            "exit": None if verdict.exit is None else asdict(verdict.exit),
            "class": None if failure is None else failure.kind.value,
            "saved": attempt.saved,
            "savers": sorted(attempt.savers),
            "step": attempt.step,
            "lost": sorted(attempt.lost),
            "decision": plan.restarted,
        }
        return self._folder.change(
            lambda record: (
                record
                if record.state.ended  # by a command, just now
                else replace(
                    record,
                    attempt=plan.attempt,
                    attempts=(*record.attempts[: plan.attempt - 2], ended),
                    state=RunState.STARTING,
                    message=None,
                    slow=None,
                    failing=None,
                    unsupervised={},  # each node has accepted a login
                )
            )
        )


def recorded_attempts(folder: RunFolder) -> list[DirectAttempt]:
    """The failed attempts of a run that another process has restarted, as far as later decisions depend on them."""
    plan, attempts = folder.read_plan(), folder.read().attempts
    return [
        DirectAttempt(
            saved=entry["saved"],
            step=entry.get("step"),
            started=frozenset(names),
            lost=frozenset(lost),
            broken=frozenset(lost),
            first_failed_node=None if lost or entry["exit"] is None else entry["exit"]["node"],
            no_retry=False,
            savers=frozenset(entry.get("savers", ())),
        )
        for names, entry in zip(plan.earlier, attempts, strict=False)
        for lost in [entry.get("lost", ())]
    ]


def _following(plan: LaunchPlan, names: Collection[str], cause: str, remark: str = "") -> LaunchPlan:
    """The plan of the next attempt on these nodes."""
    following = on_nodes(plan, names)
    before = [node.name for node in plan.nodes]
    new = [node.name for node in following.nodes if node.name not in before]
    left_out = [node for node in plan.nodes if node.name not in names]
    decision = f"the run restarts as attempt {plan.attempt + 1}: {cause}"
    return replace(
        following,
        attempt=plan.attempt + 1,
        earlier=(*plan.earlier, tuple(before)),
        restarted="; ".join(filter(None, (decision, _change(plan, following.nodes, new, left_out), remark))),
    )


def _change(plan: LaunchPlan, nodes: Sequence[NodePlan], new: Sequence[str], left_out: Sequence[NodePlan]) -> str:
    """The change of nodes as a part of a sentence; empty if there is none."""
    absent = fold(node.name for node in left_out)
    if len(nodes) == len(plan.nodes):
        return f"{fold(new)} replaces {absent}" if new else ""
    change = [f"without {absent}"] * bool(left_out) + [f"with {fold(new)}"] * bool(new)
    return f"it continues on {len(nodes)} instead of {len(plan.nodes)} nodes, {' and '.join(change)}"
