"""What became of a run: judge what its agents and the scheduler say, and keep the record up to date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from orchestrator.errors import NodesError
from orchestrator.hostlist import fold
from orchestrator.launchers.base import Launcher, Queue
from orchestrator.plan import LaunchPlan
from orchestrator.run import RankExit, RunRecord, RunState
from orchestrator.store import RunFolder
from orchestrator.transports import observed
from orchestrator.transports.observed import NodeObservation

_PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a run stands by all that is known of it; `exit` names the first failing rank of a failed one."""

    state: RunState
    exit: RankExit | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A verdict with what it rests on, in node order."""

    verdict: Verdict
    nodes: tuple[NodeObservation, ...]
    queue: Queue | None


def judge(plan: LaunchPlan, nodes: Sequence[NodeObservation], queue: Queue | None) -> Verdict:
    """Decide a run's state. A scheduler that does not answer is no verdict; a run that nobody knows is LOST."""
    ends = [(node.node, node.finished) for node in nodes if node.finished is not None]
    failed = sorted((end for end in ends if end[1].state == "FAILED"), key=lambda end: end[1].time)
    if failed:
        first = next((_exit_of(node, end.exit) for node, end in failed if end.exit), None)
        return Verdict(RunState.FAILED, first, str(first or f"the agent of {failed[0][0]} failed"))
    if len(ends) == plan.node_count and all(end.state == "DONE" for _, end in ends):
        return Verdict(RunState.DONE)
    if any(end.state == "STOPPED" for _, end in ends):
        return Verdict(RunState.STOPPED)
    started = [node for node in nodes if node.agent is not None]
    dead = [node for node in started if node.finished is None and not node.alive and _seen_from_here(plan, node)]
    if dead:
        return _died(dead[0])
    return _judge_by_queue(started, queue) if plan.launcher == "slurm" else _judge_by_nodes(plan, started)


def _seen_from_here(plan: LaunchPlan, node: NodeObservation) -> bool:
    """A login node cannot tell whether a process of a compute node lives; a node reached directly can."""
    return plan.launcher == "ssh" or node.same_boot


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


def _judge_by_queue(started: Sequence[NodeObservation], queue: Queue | None) -> Verdict:
    if queue is None:
        return Verdict(RunState.LOST, message="the job was never submitted")
    if not queue.over:
        waiting = RunState.PENDING if queue.word in _PENDING else RunState.STARTING
        return Verdict(RunState.RUNNING if started else waiting, message=queue.reason or None)
    if queue.word == "CANCELLED":
        return Verdict(RunState.STOPPED, message="the job was cancelled")
    if queue.word in {"GONE", "COMPLETED"}:
        return Verdict(
            RunState.LOST, message=f"Slurm says {queue.word}, and its agents left no end in the run's folder"
        )
    return Verdict(RunState.FAILED, message=f"Slurm ended the job: {queue.word} {queue.reason}".strip())


def _exit_of(node: str, found: observed.RankExit) -> RankExit:
    return RankExit(node, found.rank, found.code, found.signal, found.error)


def observe(plan: LaunchPlan, launcher: Launcher, job: str | None) -> Status:
    """
    Ask the nodes and the scheduler.

    Raises:
        NodesError: some nodes cannot be reached, and the others do not settle it.
    """
    nodes: list[NodeObservation] = []
    for place in launcher.places():
        nodes += place.endpoint.observe(place.attempt_dir, place.nodes)
    queue = launcher.queue(job)
    verdict = judge(plan, nodes, queue)
    if launcher.unreachable and verdict.state not in {RunState.FAILED, RunState.STOPPED}:
        raise NodesError(launcher.unreachable, plan.node_count)
    return Status(verdict, tuple(nodes), queue)


def settle(folder: RunFolder, verdict: Verdict, nodes: Sequence[NodeObservation] = ()) -> RunRecord:
    """Write the verdict into the run's record; a final state stays."""
    record = folder.read()
    if record.state.final or verdict.state == record.state:
        return record
    summary = next((p["summary"] for node in nodes for p in node.progress.values() if "summary" in p), record.summary)
    ended = datetime.now(timezone.utc).isoformat() if verdict.state.final else None
    changed = replace(
        record, state=verdict.state, exit=verdict.exit, message=verdict.message, ended=ended, summary=summary
    )
    folder.write(changed)
    return changed
