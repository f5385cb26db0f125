"""
Decide the state of a run from the reports of the nodes and of the scheduler. Pure.

Each launcher has one list of checks below, most certain first; the first check that returns a verdict decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from orchestrator.endpoint.observation import Finished, NodeObservation
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.launchers.job import GONE, SILENT, JobStatus
from orchestrator.node.number_text import counted
from orchestrator.node.run.events import State
from orchestrator.node.run.retry import newest_step, saved_step
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.names.hostlist import fold
from orchestrator.run import RankExit, RunState
from orchestrator.verdict.hangs import diagnose_hang
from orchestrator.verdict.separate import separate_message

if TYPE_CHECKING:
    from orchestrator.node.run.events import StateName

LAST_LINES = 5
# Written by slurmstepd; other causes add "DUE TO", and Slurm reports them by the state.
_SIGNALLED_JOB = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ \*\*\*")
# Written by slurmstepd if it ends a step whose tasks still run.
_CANCELLED_STEP = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT ")
# man squeue, JOB STATE CODES: Slurm ended these jobs itself; the signals to the ranks are a consequence.
_ENDED_BY_SLURM = {
    "BOOT_FAIL": (FailureClass.NODE, Retry.ELSEWHERE),
    "DEADLINE": (FailureClass.PREEMPTION, Retry.NEVER),
    "NODE_FAIL": (FailureClass.NODE, Retry.ELSEWHERE),
    "OUT_OF_MEMORY": (FailureClass.MEMORY, Retry.NEVER),
    "PREEMPTED": (FailureClass.PREEMPTION, Retry.RETRY),
    "TIMEOUT": (FailureClass.PREEMPTION, Retry.NEVER),
}
_CANCELLED, _FAILED = "CANCELLED", "FAILED"
_STOPPED_BY_USER = frozenset({_CANCELLED, GONE})  # a job that Slurm no longer knows was most likely cancelled


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a run; for a failed run, `exit` is the exit of the first rank that failed, if a rank did."""

    state: RunState
    exit: RankExit | None = None
    message: str | None = None
    is_refused: bool = False
    """The check of the nodes refused the start."""
    failure: tuple[FailureClass, Retry] | None = None
    """The class of the failure, and if another attempt can help, where the scheduler or the supervisor knows it."""
    failed_nodes: tuple[str, ...] = ()
    """The nodes that failed, if the supervisor knows them and no rank reported its exit."""


@dataclass(frozen=True)
class Evidence:
    """The reports of the nodes, in node order; `stop_requested` is True after `orch stop`. Lists are cached for many nodes."""

    plan: LaunchPlan
    nodes: Sequence[NodeObservation]
    stop_requested: bool
    batch_log: str = ""
    """The end of what the batch script of a Slurm job wrote."""

    @cached_property
    def finished(self) -> list[tuple[str, Finished]]:
        """The nodes whose agents have finished, in order of time."""
        finished = [(node.node, node.finished) for node in self.nodes if node.finished is not None]
        return sorted(finished, key=lambda entry: entry[1].time)

    def finished_as(self, *states: StateName) -> list[tuple[str, Finished]]:
        return [(node, finished) for node, finished in self.finished if finished.state in states]

    @property
    def all_finished(self) -> bool:
        return len(self.finished) == self.plan.node_count

    @cached_property
    def started(self) -> list[NodeObservation]:
        return [node for node in self.nodes if node.agent is not None]

    @property
    def first_exit(self) -> RankExit | None:
        """The exit of the rank that failed first: of one that lost its connection to another rank only if no other failure is reported."""
        failed = [(node, finished.exit) for node, finished in self.finished_as(State.FAILED) if finished.exit]
        if not failed:
            return None
        node, reported = failed[0]
        if reported.lost_peer:
            # also ranks that report an error, on nodes which were stopped because ranks of other nodes noticed their end
            stopped = {name for name, _ in self.finished_as(State.STOPPED)}
            exits = ((each.node, each.first_failure) for each in self.nodes if each.node in stopped)
            errors = [(name, exit_) for name, exit_ in exits if exit_ is not None and exit_.exception]
            node, reported = next((entry for entry in [*failed, *errors] if not entry[1].lost_peer), failed[0])
        if reported.exception and reported.signal == "SIGTERM":
            # orch has ended it, as it took longer to end than the ranks that noticed its failure
            reported = replace(reported, code=1, signal=None, error=reported.error or reported.exception)
        failure = RankExit(
            node,
            reported.rank,
            reported.code,
            reported.signal,
            reported.error,
            kind=reported.kind,
            per_node=reported.rank is None,
            missing=reported.missing,
        )
        return diagnose_hang(failure, self.nodes)

    @property
    def failure_by_hand(self) -> str:
        """The failure of a rank that the program of a node has started by hand, if the first node that failed reports only a lost connection."""
        failed = self.finished_as(State.FAILED)
        if not failed or not failed[0][1].lost_peer:
            return ""
        causes = [(node, finished) for node, finished in self.finished if finished.lost and not finished.lost_peer]
        return f"{causes[0][0]}: {causes[0][1].lost}" if causes else ""


Check = Callable[[Evidence], "Verdict | None"]
SlurmCheck = Callable[[Evidence, JobStatus], "Verdict | None"]


def judge(
    plan: LaunchPlan,
    nodes: Sequence[NodeObservation],
    queue: JobStatus | None,
    *,
    stop_requested: bool = False,
    batch_log: str = "",
) -> Verdict:
    """
    Decide a run's state. A scheduler that does not answer decides nothing; a run without any report is LOST.

    Args:
        stop_requested: `orch stop` was run. Without it, and without a report of Slurm, agents stopped by a signal have failed.
        queue: the job's status by the scheduler; None over SSH, or if no job was submitted.
        batch_log: the end of the batch script's log, for a Slurm job that is over.
    """
    evidence = Evidence(plan, tuple(nodes), stop_requested, batch_log)
    if not plan.by_scheduler:
        verdicts = (check(evidence) for check in DIRECT_CHECKS)
        undecided = Verdict(RunState.RUNNING)
    elif queue is None:
        verdicts = (check(evidence) for check in UNSUBMITTED_CHECKS)
        undecided = Verdict(RunState.LOST, message="the job was never submitted")
    else:
        verdicts = (check(evidence, queue) for check in SLURM_CHECKS)
        undecided = Verdict(RunState.FAILED, message=f"{_report(queue)}; {_output_hint(evidence)}")
    return next(filter(None, verdicts), undecided)


# Checks for any launcher.


def every_node_done(evidence: Evidence) -> Verdict | None:
    is_done = evidence.all_finished and evidence.finished_as(State.DONE) == evidence.finished
    return Verdict(RunState.DONE) if is_done else None


def separate_trainings_done(evidence: Evidence) -> Verdict | None:
    """FAILED if every node is done, with ranks that trained separately; over SSH also if the supervisor has stopped them for that."""
    ends = (State.DONE,) if evidence.plan.by_scheduler or evidence.stop_requested else (State.DONE, State.STOPPED)
    is_over = evidence.all_finished and evidence.finished_as(*ends) == evidence.finished
    message = separate_message(evidence.plan, evidence.nodes) if is_over else ""
    failure = (FailureClass.CONFIG, FailureClass.CONFIG.retry)
    return Verdict(RunState.FAILED, message=message, failure=failure) if message else None


def head_done(evidence: Evidence) -> Verdict | None:
    """DONE if the program of the first node is, and decides the run (--until-head); how the others end is a consequence."""
    if not evidence.plan.program.until_head:
        return None
    head = next((node for node in evidence.started if node.agent is not None and node.agent.node_rank == 0), None)
    is_done = head is not None and head.finished is not None and head.finished.state == State.DONE
    return Verdict(RunState.DONE) if is_done else None


def a_node_failed(evidence: Evidence) -> Verdict | None:
    """FAILED by the earliest failure of a rank or an agent; later failures are consequences."""
    failed = evidence.finished_as(State.FAILED)
    if not failed:
        return None
    _, finished = failed[0]
    if finished.exit is None:
        message = evidence.failure_by_hand or finished.text
        return Verdict(RunState.FAILED, message=message, is_refused=finished.is_refused)
    return Verdict(RunState.FAILED, evidence.first_exit, str(evidence.first_exit))


def still_saving(evidence: Evidence) -> Verdict | None:
    """RUNNING while the ranks of a node save for `orch stop --save`: those of other nodes may have ended before."""
    saving = [node for node in evidence.started if node.saving_ranks is not None]
    is_over = evidence.all_finished or not saving or evidence.finished_as(State.FAILED)
    alive = any(node.finished is None and (node.alive or not node.same_boot) for node in evidence.started)
    if is_over or not alive:
        return None
    return Verdict(RunState.RUNNING, message="the ranks save, and end then (orch stop --save)")


def stopped_by_orch(evidence: Evidence) -> Verdict | None:
    """STOPPED if agents were stopped after `orch stop`."""
    if not evidence.stop_requested or not evidence.finished_as(State.STOPPED, State.REQUEUE):
        return None
    return Verdict(RunState.STOPPED, message=saved_message(evidence.nodes))


def saved_message(nodes: Sequence[NodeObservation]) -> str | None:
    """The newest saved step of ranks that were asked to save; None if they were not."""
    if all(node.saving_ranks is None for node in nodes):
        return None
    reports = [report for node in nodes for report in node.progress.values()]
    saved = [saved_step(report) or 0 for report in reports if "saved" in report]
    if not saved:
        return "the program does not report what it has saved"
    newest, reached = max(saved), newest_step(reports) or 0
    lost = f"{counted(reached - newest, 'step')} of {reached} are lost" if newest < reached else ""
    return "; ".join(filter(None, (f"step {newest} is saved" if newest else "nothing is saved", lost)))


def stopped_by_another_signal(evidence: Evidence) -> Verdict | None:
    """FAILED if a node's shutdown, an administrator or a clean-up script stopped it, or Slurm did not restart it on request."""
    if evidence.finished_as(State.REQUEUE):
        return Verdict(RunState.FAILED, message="the ranks requested another attempt, and Slurm did not start it")
    stopped = evidence.finished_as(State.STOPPED)
    message = f"{stopped[0][0]} was stopped by a signal, not by `orch stop` on this machine" if stopped else ""
    return Verdict(RunState.FAILED, message=message) if message else None


def an_agent_died(evidence: Evidence) -> Verdict | None:
    """FAILED if an agent is dead. Only its own machine knows that; under Slurm, the report may come from a login node."""
    known = (node for node in evidence.started if not evidence.plan.by_scheduler or node.same_boot)
    dead = next((node for node in known if node.finished is None and not node.alive), None)
    if dead is None:
        return None
    log = dead.log.strip().splitlines()
    message = f"the agent of {dead.node} died without a last event" + (f"; its log ends: {log[-1]}" if log else "")
    return Verdict(RunState.FAILED, RankExit(dead.node, None, None, "SIGKILL"), message)


def a_node_without_a_trace(evidence: Evidence) -> Verdict | None:
    """LOST if a node has no agent: it never started one, or its folder is gone."""
    if len(evidence.started) == evidence.plan.node_count:
        return None
    missing = sorted({node.name for node in evidence.plan.nodes} - {node.node for node in evidence.started})
    message = f"no trace of the run on {fold(missing)}: never started, or its folder is gone"
    return Verdict(RunState.LOST, message=message)


DIRECT_CHECKS: tuple[Check, ...] = (
    separate_trainings_done,
    head_done,
    every_node_done,
    a_node_failed,
    still_saving,
    stopped_by_orch,
    stopped_by_another_signal,
    an_agent_died,
    a_node_without_a_trace,
)
UNSUBMITTED_CHECKS = DIRECT_CHECKS[:-1]


# Checks for a Slurm job.


def every_node_of_job_done(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """
    DONE if every node is, unless Slurm reports that it took the nodes from the ranks.

    A shell whose command Slurm has ended may exit with 0 before the agent gets its signal. Ranks that reported done are done in any case.
    """
    separate = separate_trainings_done(evidence)
    verdict = separate or head_done(evidence) or every_node_done(evidence)
    if verdict is None or separate or all(finished.reported_done for _, finished in evidence.finished):
        return verdict
    is_step_cancelled = queue.state == _CANCELLED and _CANCELLED_STEP.search(evidence.batch_log) is not None
    is_cut_short = queue.waits or queue.state in _ENDED_BY_SLURM or is_step_cancelled
    return None if is_cut_short else verdict


def job_ended_by_slurm(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """FAILED if Slurm ended the job; the exits of the agents are consequences."""
    if queue.state not in _ENDED_BY_SLURM:
        return None
    state = f"Slurm ended the job: {queue.state} {queue.reason}".strip()
    detail = next((finished.text for _, finished in evidence.finished_as(State.FAILED) if finished.exit is None), None)
    message = f"{state}; {detail}" if detail else state
    return Verdict(RunState.FAILED, evidence.first_exit, message, failure=_ENDED_BY_SLURM[queue.state])


def job_lost_its_batch_host(_evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """FAILED if the node of the batch script was lost; the ends of the agents are consequences."""
    if not queue.lost_host or not queue.over or queue.state == _CANCELLED:
        return None
    message = f"Slurm ended the job: {queue.lost_host}, the node of the batch script, is lost"
    failure = _ENDED_BY_SLURM["NODE_FAIL"]
    return Verdict(RunState.FAILED, None, message, failure=failure, failed_nodes=(queue.lost_host,))


def job_signalled(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """FAILED without a failed rank if Slurm signalled the whole job, as by `scancel --full`: ranks that it killed are a consequence."""
    line = _SIGNALLED_JOB.search(evidence.batch_log)
    first = evidence.first_exit
    if line is None or not queue.over or queue.state == _CANCELLED or evidence.stop_requested:
        return None
    if first is not None and first.signal not in {"SIGKILL", "SIGTERM"}:
        return None
    message = f"Slurm signalled the whole job, as scancel does, and no rank failed before: {line[0]}"
    return Verdict(RunState.FAILED, message=message)


def a_node_of_ended_job_failed(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """FAILED by a node, unless Slurm may still restart the job; failures after `orch stop` cancelled it are consequences."""
    is_final = queue.over or (queue.absent and evidence.all_finished)
    is_consequence = queue.state == _CANCELLED and evidence.stop_requested
    return a_node_failed(evidence) if is_final and not is_consequence else None


def job_stopped_by_user(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """STOPPED if `orch stop` or scancel stopped the agents."""
    is_final = queue.over or (queue.absent and evidence.all_finished)
    by_user = evidence.stop_requested or queue.state in _STOPPED_BY_USER
    stopped = evidence.finished_as(State.STOPPED, State.REQUEUE) and not _some_never_started(evidence, queue)
    message = saved_message(evidence.nodes) or _canceller(queue)
    return Verdict(RunState.STOPPED, message=message) if is_final and by_user and stopped else None


def job_stopped_by_another_signal(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """FAILED by `stopped_by_another_signal`, once the job is over."""
    return stopped_by_another_signal(evidence) if queue.over and not _some_never_started(evidence, queue) else None


def agents_of_forgotten_job_died(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """
    The outcome if Slurm no longer has the job, and its agents were killed with nothing recorded.

    STOPPED after `orch stop`; FAILED without a failed rank if they printed nothing either.
    """
    is_alive = any(node.same_boot and node.alive for node in evidence.started)
    if queue.state == GONE and evidence.stop_requested and evidence.started and not evidence.finished and not is_alive:
        return Verdict(RunState.STOPPED)
    dead = [node.node for node in evidence.started if node.same_boot and not node.alive and not node.log.strip()]
    if queue.state != GONE or not dead or evidence.finished or len(dead) < len(evidence.started):
        return None
    killed = f"its agents on {fold(dead)} were killed, and no rank failed before"
    hint = "an admin finds the cause in the log of slurmctld"
    return Verdict(RunState.FAILED, message=f"Slurm no longer lists the job: {killed}; {hint}")


def an_agent_of_ended_job_died(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """FAILED by `an_agent_died`, once the job is over; if the job was cancelled, a dead agent is a consequence."""
    return an_agent_died(evidence) if queue.over and queue.state != _CANCELLED else None


def job_is_queued(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """PENDING if the job is queued, its ranks requested another attempt, or nothing has started and squeue does not answer."""
    if queue.over:
        return None
    is_queued = queue.waits or (queue.state == SILENT and not evidence.started)
    is_requeued = any(node.finished is not None and node.finished.state == State.REQUEUE for node in evidence.started)
    return Verdict(RunState.PENDING, message=_waiting_message(queue)) if is_queued or is_requeued else None


def job_is_running(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """RUNNING if the job is not over and an agent has started, else STARTING."""
    state = RunState.RUNNING if evidence.started else RunState.STARTING
    return None if queue.over else Verdict(state, message=_waiting_message(queue))


def job_cancelled(_evidence: Evidence, queue: JobStatus) -> Verdict | None:
    if queue.state != _CANCELLED:
        return None
    return Verdict(RunState.STOPPED, message=_canceller(queue) or "the job was cancelled")


def setup_failed_on_a_node(evidence: Evidence, _queue: JobStatus) -> Verdict | None:
    """FAILED if a node has output but no agent: the output names the setup line that failed."""
    output = next((node.log.strip() for node in evidence.nodes if node.agent is None and node.log.strip()), "")
    return Verdict(RunState.FAILED, message=output) if output else None


def job_without_agent_exits(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """LOST if Slurm reports no failure, or no longer knows the job."""
    if queue.state not in {GONE, "COMPLETED"}:
        return None
    message = f"{_report(queue)}, but its agents recorded no exit; {_output_hint(evidence)}"
    return Verdict(RunState.LOST, message=message)


SLURM_CHECKS: tuple[SlurmCheck, ...] = (
    every_node_of_job_done,
    job_ended_by_slurm,
    job_lost_its_batch_host,
    job_signalled,
    a_node_of_ended_job_failed,
    job_stopped_by_user,
    job_stopped_by_another_signal,
    agents_of_forgotten_job_died,
    an_agent_of_ended_job_died,
    job_is_queued,
    job_is_running,
    job_cancelled,
    setup_failed_on_a_node,
    job_without_agent_exits,
)


def _some_never_started(evidence: Evidence, queue: JobStatus) -> bool:
    """True if the job failed before every node had an agent: then the stopped agents are a consequence."""
    return queue.state == _FAILED and not evidence.all_finished


def _waiting_message(queue: JobStatus) -> str | None:
    """The scheduler's words on a job that has not ended; a failed query is not recorded, because it says nothing about the run."""
    return queue.why or None if queue.state != SILENT else None


def _report(queue: JobStatus) -> str:
    return f"Slurm reports {queue.state}" + (f" ({queue.reason})" if queue.reason else "")


def _output_hint(evidence: Evidence) -> str:
    """The last lines of the batch script's log, else the place of the log."""
    lines = [line for line in evidence.batch_log.splitlines() if line.strip()]
    if not lines:
        return f"its output is in {evidence.plan.attempt_dir(evidence.plan.head)}/slurm-*.log"
    shown = "\n  ".join(lines[-LAST_LINES:])
    return f"the log of the batch script ends (`orch logs --stream batch` shows more):\n  {shown}"


def _canceller(queue: JobStatus) -> str | None:
    """The message that names the user who cancelled the job; only Slurm's accounting knows the user."""
    return f"the job was cancelled {queue.reason}" if queue.reason.startswith("by ") else None
