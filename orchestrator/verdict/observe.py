"""Observe a run: collect the reports of its agents and judge them, with the scheduler's."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.endpoint.replies import NodeObservation
from orchestrator.errors import NodesError
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.job import JobStatus
from orchestrator.names.hostlist import fold
from orchestrator.node.machine import stat_fields
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import RunState
from orchestrator.store import KeptRun
from orchestrator.verdict.judge import Verdict, judge

PATIENCE_S = 5.0  # a shared file system shows other machines' writes late
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Status:
    """A verdict and its evidence, in node order."""

    verdict: Verdict
    nodes: tuple[NodeObservation, ...]
    queue: JobStatus | None
    attempt: int
    position: str = ""
    """The position of a waiting job in the queue."""


def observe(run: KeptRun, plan: LaunchPlan, launcher: Launcher, queue: JobStatus | None) -> Status:
    """
    Query the nodes. `queue` was read before: the agents of a job that is over have written their ends by now.

    Raises:
        NodesError: some nodes cannot be reached, and the others do not decide the state.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        nodes: list[NodeObservation] = []
        attempt = launcher.attempt()
        places = launcher.places(attempt)
        for place in places:
            if place.failure is None:
                nodes += place.endpoint.observe(place.attempt_dir, place.nodes)
        verdict = judge(plan, nodes, queue, stop_requested=run.is_asked_to_stop())
        unreachable = [place.failure for place in places if place.failure is not None]
        if unreachable and verdict.state is not RunState.FAILED:
            raise NodesError(unreachable, plan.node_count)
        if verdict.state is not RunState.LOST or queue is None or time.monotonic() > deadline:
            return Status(verdict, tuple(nodes), queue, attempt)
        time.sleep(POLL_S)


def may_still_run(plan: LaunchPlan, verdict: Verdict, nodes: Sequence[NodeObservation]) -> list[str]:
    """
    The nodes on which a failed or stopped run may still run, including those that were not reached.

    None under Slurm, which ends them itself; until then the verdict is not final.
    """
    if plan.launcher != "ssh" or verdict.state not in {RunState.FAILED, RunState.STOPPED}:
        return []
    ended = {node.node for node in nodes if node.finished is not None or not node.alive}
    return [node.name for node in plan.nodes if node.name not in ended]


def recordable_verdict(plan: LaunchPlan, verdict: Verdict, nodes: Sequence[NodeObservation]) -> Verdict:
    """
    The verdict that a command which ends nothing may record: final only if no node may still run.

    No supervisor watches a run whose record is final, so its remaining processes would never be ended.
    """
    if left := may_still_run(plan, verdict, nodes):
        return replace(verdict, state=RunState.RUNNING, message=f"{verdict.message}; {fold(left)} may still run")
    return verdict


def still_running_warning(run: KeptRun, run_id: str, left: Sequence[str]) -> str:
    """The warning that no supervisor ends what is left of a run on these nodes; empty if one does, or nothing is left."""
    present = run.supervisor()
    stopped = stopped_pid(present)
    if not left or (present is not None and stopped is None):
        return ""
    who = "nobody supervises it" if stopped is None else f"its supervisor, {present}, is stopped"
    first = f"orch attach {run_id}" if stopped is None else f"kill -CONT {stopped}"
    return f"run {run_id} may still run on {fold(left)}, and {who}: `{first}` or `orch stop {run_id}` ends what is left"


def stopped_pid(supervisor: str | None) -> int | None:
    """The pid of a supervisor, given as its lock names it, if it is on this machine and stopped by a signal (SIGSTOP)."""
    found = re.fullmatch(r"pid (\d+) on (.+)", supervisor or "")
    if found is None or found[2] != socket.gethostname():
        return None
    fields = stat_fields(int(found[1]))
    return int(found[1]) if fields is not None and fields[0] in "Tt" else None
