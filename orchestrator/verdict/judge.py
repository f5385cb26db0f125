"""Decide the state of a run from the reports of its nodes and of the scheduler. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.endpoint import replies
from orchestrator.endpoint.replies import Finished, NodeObservation
from orchestrator.launchers.slurm.job import GONE, SILENT, Queue
from orchestrator.names.hostlist import fold
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import RankExit, RunState
from orchestrator.verdict.hangs import explained

# man squeue, JOB STATE CODES: Slurm ended these itself, and the signals that ranks got are its doing.
_ENDED_BY_SLURM = frozenset({"BOOT_FAIL", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"})


_STOPPED_BY_SLURM = frozenset({"CANCELLED", GONE})  # by scancel, for all that is known of a job that Slurm forgot


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a run stands by all that is known of it; `exit` names the first failing rank of a failed one."""

    state: RunState
    exit: RankExit | None = None
    message: str | None = None


def judge(
    plan: LaunchPlan, nodes: Sequence[NodeObservation], queue: Queue | None, *, stop_asked: bool = False
) -> Verdict:
    """
    Decide a run's state. A scheduler that does not answer is no verdict; a run that nobody knows is LOST.

    Args:
        stop_asked: `orch stop` was here. Without it, and without Slurm's word, agents that were asked to stop have failed.
    """
    ends = [(node.node, node.finished) for node in nodes if node.finished is not None]
    if len(ends) == plan.node_count and all(end.state == "DONE" for _, end in ends):
        return Verdict(RunState.DONE)
    failed = sorted((end for end in ends if end[1].state == "FAILED"), key=lambda end: end[1].time)
    first = next((explained(_exit_of(node, end.exit), nodes) for node, end in failed if end.exit), None)
    why = next((end.text for _, end in failed if end.exit is None), None)
    if queue is not None and queue.word in _ENDED_BY_SLURM:  # what agents say then is a consequence
        word = f"Slurm ended the job: {queue.word} {queue.reason}".strip()
        return Verdict(RunState.FAILED, first, f"{word}; {why}" if why else word)
    # As long as Slurm may yet begin the job anew, nothing is over; where it can never be asked, once all nodes have ended.
    over = queue is None or queue.over or (queue.absent and len(ends) == plan.node_count)
    cancelled = queue is not None and queue.word == "CANCELLED"  # how agents end then is a consequence
    if failed and over and not (cancelled and stop_asked):
        return Verdict(RunState.FAILED, first, str(first or failed[0][1].text))
    never_started = queue is not None and queue.word == "FAILED" and len(ends) < plan.node_count
    stopped = sorted((end.time, node) for node, end in ends if end.state in {"STOPPED", "REQUEUE"})
    by_user = stop_asked or (queue is not None and queue.word in _STOPPED_BY_SLURM)
    if stopped and over and not never_started and (by_user or queue is None or queue.over):
        return Verdict(RunState.STOPPED, message=_canceller(queue)) if by_user else _not_by_us(stopped[0][1], ends)
    started = [node for node in nodes if node.agent is not None]
    dead = [node for node in started if node.finished is None and not node.alive and _seen_from_here(plan, node)]
    if dead and (queue is None or queue.over) and not cancelled:
        return _died(dead[0])
    said = next((node.log.strip() for node in nodes if node.agent is None and node.log.strip()), "")
    return _judge_by_queue(plan, started, queue, said) if plan.launcher == "slurm" else _judge_by_nodes(plan, started)


def _seen_from_here(plan: LaunchPlan, node: NodeObservation) -> bool:
    """A login node cannot tell whether a process of a compute node lives; a node reached directly can."""
    return plan.launcher == "ssh" or node.same_boot


def _not_by_us(node: str, ends: Sequence[tuple[str, Finished]]) -> Verdict:
    """Stopped by a node that shuts down, an admin, a cleaning script; or by ranks that wanted another attempt."""
    if any(end.state == "REQUEUE" for _, end in ends):
        return Verdict(RunState.FAILED, message="the ranks asked for another attempt, and Slurm did not begin it")
    return Verdict(RunState.FAILED, message=f"{node} was asked to stop by a signal that orch did not send")


def _died(node: NodeObservation) -> Verdict:
    said = node.log.strip().splitlines()
    message = f"the agent of {node.node} died without a word" + (f"; its last was: {said[-1]}" if said else "")
    return Verdict(RunState.FAILED, RankExit(node.node, None, None, "SIGKILL"), message)


def _judge_by_nodes(plan: LaunchPlan, started: Sequence[NodeObservation]) -> Verdict:
    if len(started) == plan.node_count:
        return Verdict(RunState.RUNNING)
    missing = sorted({node.name for node in plan.nodes} - {node.node for node in started})
    return Verdict(
        RunState.LOST, message=f"no trace of the run on {fold(missing)}: never started, or its folder is gone"
    )


def _judge_by_queue(plan: LaunchPlan, started: Sequence[NodeObservation], queue: Queue | None, said: str) -> Verdict:
    """`said` is what a node left behind that got to no agent: which line of slurm.setup failed."""
    if queue is None:
        return Verdict(RunState.LOST, message="the job was never submitted")
    if not queue.over:
        under_way = RunState.RUNNING if started else RunState.STARTING
        asks = any(node.finished is not None and node.finished.state == "REQUEUE" for node in started)
        waits = asks or queue.waits or (queue.word == SILENT and not started)
        return Verdict(RunState.PENDING if waits else under_way, message=queue.why or None)
    if queue.word == "CANCELLED":
        return Verdict(RunState.STOPPED, message=_canceller(queue) or "the job was cancelled")
    if said:
        return Verdict(RunState.FAILED, message=said)
    says = f"Slurm says {queue.word}" + (f" ({queue.reason})" if queue.reason else "")
    log = f"what it printed is in {plan.attempt_dir(plan.head)}/slurm-*.log"
    if queue.word in {GONE, "COMPLETED"}:
        return Verdict(RunState.LOST, message=f"{says}, but its agents left no end; {log}")
    return Verdict(RunState.FAILED, message=f"{says}; {log}")


def _canceller(queue: Queue | None) -> str | None:
    """Who cancelled the job, which accounting alone tells."""
    return f"the job was cancelled {queue.reason}" if queue is not None and queue.reason.startswith("by ") else None


def _exit_of(node: str, found: replies.RankExit) -> RankExit:
    return RankExit(node, found.rank, found.code, found.signal, found.error, kind=found.kind)
