"""
Decide the state of a run from the reports of its nodes and of the scheduler. Pure.

The rules of a launcher stand in one list below, most certain first; the first that gives a verdict decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from orchestrator.endpoint import replies
from orchestrator.endpoint.replies import Finished, NodeObservation
from orchestrator.launchers.job import GONE, SILENT, JobStatus
from orchestrator.names.hostlist import fold
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import RankExit, RunState
from orchestrator.verdict.hangs import diagnose_hang

# man squeue, JOB STATE CODES: Slurm ended these itself; the signals that ranks got are a consequence.
_ENDED_BY_SLURM = frozenset({"BOOT_FAIL", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"})
_CANCELLED = "CANCELLED"
_STOPPED_BY_USER = frozenset({_CANCELLED, GONE})  # scancel is the likeliest end of a job that Slurm forgot


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a run; `exit` names the first failing rank of a failed one."""

    state: RunState
    exit: RankExit | None = None
    message: str | None = None


@dataclass(frozen=True)
class Evidence:
    """The reports of the nodes, in node order; `stop_requested`: `orch stop` was run. Each list is made once: nodes may be many."""

    plan: LaunchPlan
    nodes: Sequence[NodeObservation]
    stop_requested: bool

    @cached_property
    def ends(self) -> list[tuple[str, Finished]]:
        """The nodes whose agents have ended, in the order of their ends."""
        ends = [(node.node, node.finished) for node in self.nodes if node.finished is not None]
        return sorted(ends, key=lambda end: end[1].time)

    def ends_in(self, *states: str) -> list[tuple[str, Finished]]:
        """Those that ended in one of the states."""
        return [(node, end) for node, end in self.ends if end.state in states]

    @property
    def all_ended(self) -> bool:
        return len(self.ends) == self.plan.node_count

    @cached_property
    def started(self) -> list[NodeObservation]:
        """The nodes whose agents have started."""
        return [node for node in self.nodes if node.agent is not None]

    @property
    def first_exit(self) -> RankExit | None:
        """The exit of the first rank that failed."""
        failed = ((node, end.exit) for node, end in self.ends_in("FAILED"))
        return next((diagnose_hang(_exit_of(node, end), self.nodes) for node, end in failed if end is not None), None)


Rule = Callable[[Evidence], "Verdict | None"]
SlurmRule = Callable[[Evidence, JobStatus], "Verdict | None"]


def judge(
    plan: LaunchPlan, nodes: Sequence[NodeObservation], queue: JobStatus | None, *, stop_requested: bool = False
) -> Verdict:
    """
    Decide a run's state. A scheduler that does not answer is no verdict; a run of which nothing is known is LOST.

    Args:
        stop_requested: `orch stop` was run. Without it, and without a report of Slurm, agents that were asked to stop have failed.
    """
    evidence = Evidence(plan, tuple(nodes), stop_requested)
    return judge_direct(evidence) if plan.launcher == "ssh" else judge_slurm(evidence, queue)


def judge_direct(evidence: Evidence) -> Verdict:
    """Decide by the nodes alone."""
    for rule in DIRECT_RULES:
        if verdict := rule(evidence):
            return verdict
    return Verdict(RunState.RUNNING)


def judge_slurm(evidence: Evidence, queue: JobStatus | None) -> Verdict:
    """Decide by the nodes and the scheduler; `queue` is None where no job was submitted."""
    if queue is None:
        found = (rule(evidence) for rule in UNSUBMITTED_RULES)
        return next(filter(None, found), Verdict(RunState.LOST, message="the job was never submitted"))
    for rule in SLURM_RULES:
        if verdict := rule(evidence, queue):
            return verdict
    return _failed_job(evidence, queue)


# Rules for any launcher.


def every_node_done(evidence: Evidence) -> Verdict | None:
    return (
        Verdict(RunState.DONE) if evidence.all_ended and len(evidence.ends_in("DONE")) == len(evidence.ends) else None
    )


def a_node_failed(evidence: Evidence) -> Verdict | None:
    """The earliest failure is the cause, be it of a rank or of an agent; the others are consequences."""
    failed = evidence.ends_in("FAILED")
    if not failed:
        return None
    node, end = failed[0]
    if end.exit is None:
        return Verdict(RunState.FAILED, message=end.text)
    first = diagnose_hang(_exit_of(node, end.exit), evidence.nodes)
    return Verdict(RunState.FAILED, first, str(first))


def stopped_by_orch(evidence: Evidence) -> Verdict | None:
    stopped = evidence.ends_in("STOPPED", "REQUEUE")
    return Verdict(RunState.STOPPED) if stopped and evidence.stop_requested else None


def stopped_by_another_signal(evidence: Evidence) -> Verdict | None:
    """A node that shuts down, an admin or a cleaning script stopped it; or ranks asked for another attempt."""
    if evidence.ends_in("REQUEUE"):
        message = "the ranks asked for another attempt, and Slurm did not start it"
        return Verdict(RunState.FAILED, message=message)
    stopped = evidence.ends_in("STOPPED")
    if not stopped:
        return None
    return Verdict(RunState.FAILED, message=f"{stopped[0][0]} was asked to stop by a signal that orch did not send")


def an_agent_died(evidence: Evidence) -> Verdict | None:
    """A login node cannot know whether a process of a compute node is alive; a node reached directly does."""
    reached = (node for node in evidence.started if evidence.plan.launcher == "ssh" or node.same_boot)
    dead = next((node for node in reached if node.finished is None and not node.alive), None)
    if dead is None:
        return None
    log = dead.log.strip().splitlines()
    message = f"the agent of {dead.node} died without a last event" + (f"; its log ends: {log[-1]}" if log else "")
    return Verdict(RunState.FAILED, RankExit(dead.node, None, None, "SIGKILL"), message)


def a_node_without_a_trace(evidence: Evidence) -> Verdict | None:
    missing = {node.name for node in evidence.plan.nodes} - {node.node for node in evidence.started}
    if len(evidence.started) == evidence.plan.node_count:
        return None
    where = fold(sorted(missing))
    return Verdict(RunState.LOST, message=f"no trace of the run on {where}: never started, or its folder is gone")


DIRECT_RULES: tuple[Rule, ...] = (
    every_node_done,
    a_node_failed,
    stopped_by_orch,
    stopped_by_another_signal,
    an_agent_died,
    a_node_without_a_trace,
)
UNSUBMITTED_RULES = DIRECT_RULES[:-1]


# Rules for a job of Slurm.


def every_node_of_job_done(evidence: Evidence, _queue: JobStatus) -> Verdict | None:
    return every_node_done(evidence)


def job_ended_by_slurm(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """How agents end then is a consequence."""
    if queue.word not in _ENDED_BY_SLURM:
        return None
    state = f"Slurm ended the job: {queue.word} {queue.reason}".strip()
    why = next((end.text for _, end in evidence.ends_in("FAILED") if end.exit is None), None)
    return Verdict(RunState.FAILED, evidence.first_exit, f"{state}; {why}" if why else state)


def a_node_of_ended_job_failed(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """While Slurm may restart the job, nothing is final. Failures in a job that `orch stop` cancelled are consequences."""
    is_final = queue.over or (queue.absent and evidence.all_ended)
    is_consequence = queue.word == _CANCELLED and evidence.stop_requested
    return a_node_failed(evidence) if is_final and not is_consequence else None


def job_stopped_by_user(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    is_final = queue.over or (queue.absent and evidence.all_ended)
    by_user = evidence.stop_requested or queue.word in _STOPPED_BY_USER
    if not (is_final and by_user) or _some_never_started(evidence, queue) or not evidence.ends_in("STOPPED", "REQUEUE"):
        return None
    return Verdict(RunState.STOPPED, message=_canceller(queue))


def job_stopped_by_another_signal(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    return stopped_by_another_signal(evidence) if queue.over and not _some_never_started(evidence, queue) else None


def an_agent_of_ended_job_died(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    return an_agent_died(evidence) if queue.over and queue.word != _CANCELLED else None


def job_waits(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    """It is queued, or will be: its ranks asked for another attempt; or nothing has started and squeue does not answer."""
    if queue.over:
        return None
    is_queued = queue.waits or (queue.word == SILENT and not evidence.started)
    asked = any(node.finished is not None and node.finished.state == "REQUEUE" for node in evidence.started)
    return Verdict(RunState.PENDING, message=queue.why or None) if is_queued or asked else None


def job_runs(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    state = RunState.RUNNING if evidence.started else RunState.STARTING
    return None if queue.over else Verdict(state, message=queue.why or None)


def job_cancelled(_evidence: Evidence, queue: JobStatus) -> Verdict | None:
    if queue.word != _CANCELLED:
        return None
    return Verdict(RunState.STOPPED, message=_canceller(queue) or "the job was cancelled")


def a_node_left_output_but_no_agent(evidence: Evidence, _queue: JobStatus) -> Verdict | None:
    """The output names the line of slurm.setup that failed."""
    output = next((node.log.strip() for node in evidence.nodes if node.agent is None and node.log.strip()), "")
    return Verdict(RunState.FAILED, message=output) if output else None


def job_left_no_end(evidence: Evidence, queue: JobStatus) -> Verdict | None:
    if queue.word not in {GONE, "COMPLETED"}:
        return None
    return Verdict(
        RunState.LOST, message=f"{_report(queue)}, but its agents left no end; {_where_output_is(evidence.plan)}"
    )


SLURM_RULES: tuple[SlurmRule, ...] = (
    every_node_of_job_done,
    job_ended_by_slurm,
    a_node_of_ended_job_failed,
    job_stopped_by_user,
    job_stopped_by_another_signal,
    an_agent_of_ended_job_died,
    job_waits,
    job_runs,
    job_cancelled,
    a_node_left_output_but_no_agent,
    job_left_no_end,
)


def _failed_job(evidence: Evidence, queue: JobStatus) -> Verdict:
    return Verdict(RunState.FAILED, message=f"{_report(queue)}; {_where_output_is(evidence.plan)}")


def _some_never_started(evidence: Evidence, queue: JobStatus) -> bool:
    """The job failed before all nodes had an agent, which is the cause; that the others were stopped is a consequence."""
    return queue.word == "FAILED" and not evidence.all_ended


def _report(queue: JobStatus) -> str:
    return f"Slurm reports {queue.word}" + (f" ({queue.reason})" if queue.reason else "")


def _where_output_is(plan: LaunchPlan) -> str:
    return f"its output is in {plan.attempt_dir(plan.head)}/slurm-*.log"


def _canceller(queue: JobStatus) -> str | None:
    """The user who cancelled the job, which only accounting knows."""
    return f"the job was cancelled {queue.reason}" if queue.reason.startswith("by ") else None


def _exit_of(node: str, found: replies.RankExit) -> RankExit:
    return RankExit(node, found.rank, found.code, found.signal, found.error, kind=found.kind)
