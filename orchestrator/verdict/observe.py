"""What became of a run: judge what its agents and the scheduler say, and keep the record up to date."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from orchestrator.endpoint import replies
from orchestrator.endpoint.replies import Finished, NodeObservation
from orchestrator.errors import NodesError
from orchestrator.launchers.base import GONE, SILENT, Launcher, Queue
from orchestrator.names.hostlist import fold
from orchestrator.node.machine import boot_id, stat_fields
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import RankExit, RunRecord, RunState
from orchestrator.store import KeptRun
from orchestrator.verdict.hangs import explained

# man squeue, JOB STATE CODES: Slurm ended these itself, and the signals that ranks got are its doing.
_ENDED_BY_SLURM = frozenset({"BOOT_FAIL", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"})
PATIENCE_S = 5.0  # a shared file system shows other machines' writes late
POLL_S = 0.5
_STOPPED_BY_SLURM = frozenset({"CANCELLED", GONE})  # by scancel, for all that is known of a job that Slurm forgot


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
    attempt: int
    position: str = ""
    """Of a job that waits, where it is in the queue."""


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


def observe(run: KeptRun, plan: LaunchPlan, launcher: Launcher, queue: Queue | None) -> Status:
    """
    Ask the nodes; `queue` is what the scheduler said before that: what it calls over has written its end by now.

    Raises:
        NodesError: some nodes cannot be reached, and the others do not settle it.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        nodes: list[NodeObservation] = []
        attempt = launcher.attempt()
        places = launcher.places(attempt)
        for place in places:
            if place.failure is None:
                nodes += place.endpoint.observe(place.attempt_dir, place.nodes)
        verdict = judge(plan, nodes, queue, stop_asked=run.is_asked_to_stop())
        unreachable = [place.failure for place in places if place.failure is not None]
        if unreachable and verdict.state is not RunState.FAILED:
            raise NodesError(unreachable, plan.node_count)
        if verdict.state is not RunState.LOST or queue is None or time.monotonic() > deadline:
            return Status(verdict, tuple(nodes), queue, attempt)
        time.sleep(POLL_S)


def settle(run: KeptRun, verdict: Verdict, nodes: Sequence[NodeObservation] = (), *, attempt: int = 1) -> RunRecord:
    """Write the verdict into the run's record. A final state stays, but LOST, which was only the lack of a better one."""
    return run.change(lambda record: _settled(replace(record, attempt=max(record.attempt, attempt)), verdict, nodes))


def _settled(record: RunRecord, verdict: Verdict, nodes: Sequence[NodeObservation]) -> RunRecord:
    settled = record.state.final and record.state is not RunState.LOST
    same = verdict.state == record.state and (verdict.state.final or verdict.message == record.message)
    if settled or same or (verdict.state.final and launch_goes_on(record)):
        return record
    summary = next((p["summary"] for node in nodes for p in node.progress.values() if "summary" in p), record.summary)
    ended = datetime.now(timezone.utc).isoformat() if verdict.state.final else None
    return replace(
        record, state=verdict.state, exit=verdict.exit, message=verdict.message, ended=ended, summary=summary
    )


def may_still_run(plan: LaunchPlan, verdict: Verdict, nodes: Sequence[NodeObservation]) -> list[str]:
    """
    The nodes that a run which has failed or was stopped may still run on, those that were not reached included.

    None under Slurm, which ends them itself: until it has, the verdict is not final.
    """
    if plan.launcher != "ssh" or verdict.state not in {RunState.FAILED, RunState.STOPPED}:
        return []
    ended = {node.node for node in nodes if node.finished is not None or not node.alive}
    return [node.name for node in plan.nodes if node.name not in ended]


def as_seen(plan: LaunchPlan, verdict: Verdict, nodes: Sequence[NodeObservation]) -> Verdict:
    """
    The verdict that a command which ends nothing may record: final only if no node may still run.

    Nobody supervises a run whose record is final, so what still runs of it would never be ended.
    """
    if left := may_still_run(plan, verdict, nodes):
        return replace(verdict, state=RunState.RUNNING, message=f"{verdict.message}; {fold(left)} may still run")
    return verdict


def not_being_ended(run: KeptRun, run_id: str, left: Sequence[str]) -> str:
    """The warning that no supervisor ends what is left of a failed run on these nodes; empty where one does, or nothing is left."""
    present = run.supervisor()
    stopped = stopped_pid(present)
    if not left or (present is not None and stopped is None):
        return ""
    who = "nobody supervises it" if stopped is None else f"its supervisor, {present}, is stopped"
    first = f"orch attach {run_id}" if stopped is None else f"kill -CONT {stopped}"
    return f"run {run_id} may still run on {fold(left)}, and {who}: `{first}` or `orch stop {run_id}` ends what is left"


def stopped_pid(supervisor: str | None) -> int | None:
    """The pid of a supervisor, given in the words of its lock, that is on this machine and stopped by a signal (SIGSTOP)."""
    found = re.fullmatch(r"pid (\d+) on (.+)", supervisor or "")
    if found is None or found[2] != socket.gethostname():
        return None
    fields = stat_fields(int(found[1]))
    return int(found[1]) if fields is not None and fields[0] in "Tt" else None


def this_process() -> dict[str, Any]:
    """What tells this process from all others, now and later."""
    fields = stat_fields(os.getpid())
    assert fields is not None, "a process finds itself in /proc"
    here = {"host": socket.gethostname(), "boot_id": boot_id()}
    return {"pid": os.getpid(), "start_time": int(fields[19]), **here}


def launch_goes_on(record: RunRecord) -> bool:
    """Whether the process that launches the run is still at it; only the machine that launches can tell."""
    mark = record.launching
    if mark is None or record.started or mark["boot_id"] != boot_id():
        return False
    fields = stat_fields(mark["pid"])
    return fields is not None and fields[0] not in "ZX" and int(fields[19]) == mark["start_time"]


def launched_elsewhere(record: RunRecord) -> str | None:
    """The other machine where the run may still be being launched: whether it is cannot be told from here."""
    if record.launching is None or record.started or launch_goes_on(record):
        return None
    host = str(record.launching.get("host", socket.gethostname()))
    return None if host == socket.gethostname() else host
