"""Observe a run: collect the reports of the agents and of the scheduler, and judge them."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError, OrchError, RunNotFound, Unreachable
from orchestrator.fanout import failed_nodes, map_but_stragglers, map_parallel
from orchestrator.launchers.base import AttemptFolder, Launcher
from orchestrator.launchers.job import JobStatus
from orchestrator.node.system.machine import stat_fields
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.run_folder import KeptRun, SupervisorProcess
from orchestrator.run import RunState
from orchestrator.verdict.failing import known_failure
from orchestrator.verdict.judge import Verdict, judge

LATE_WRITES_S = 5.0  # a shared file system shows the writes of other machines late
POLL_S = 0.5
STRAGGLER_S = 4.0  # and longer if the other nodes are slow, too
NO_ANSWER = "no answer yet, while most other nodes have answered"
LOG_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Status:
    """A verdict and its evidence; `nodes` in node order."""

    verdict: Verdict
    nodes: tuple[NodeObservation, ...]
    queue: JobStatus | None
    attempt: int
    position: str = ""
    """The position of a waiting job in the queue."""
    missing: NodesError | None = None
    """The failures of the nodes that did not answer; None if all did."""

    @property
    def is_decided(self) -> bool:
        """True if the verdict does not depend on nodes that did not answer."""
        return self.missing is None or self.verdict.state is RunState.FAILED


def observe_run(run: KeptRun, plan: LaunchPlan, launcher: Launcher, queue: JobStatus | None) -> Status:
    """
    Query all nodes and judge their reports.

    Args:
        queue: read before the call, so that the agents of a job that is over have recorded their exit.

    Raises:
        NodesError: some nodes cannot be reached, and the others do not decide the state.
    """
    status = _observe(run, plan, launcher, queue, straggler_s=None)
    if status.missing is not None and not status.is_decided:
        raise status.missing
    return status


def observe_reachable(run: KeptRun, plan: LaunchPlan, launcher: Launcher, queue: JobStatus | None) -> Status:
    """As `observe_run`, without nodes that cannot be reached, or take much longer than the others; NodesError if none answers."""
    status = _observe(run, plan, launcher, queue, straggler_s=STRAGGLER_S)
    if status.missing is not None and not status.nodes:
        raise status.missing
    return status


def _observe(
    run: KeptRun, plan: LaunchPlan, launcher: Launcher, queue: JobStatus | None, *, straggler_s: float | None
) -> Status:
    """Query the nodes at the same time; without `straggler_s`, wait for each as long as its connection does."""
    deadline = time.monotonic() + LATE_WRITES_S
    log = launcher.batch_log(LOG_BYTES) if queue is not None and queue.over else None
    while True:
        attempt = launcher.attempt()
        folders = launcher.attempt_folders(attempt, connect=False)
        nodes, missing = observe_folders(folders, straggler_s=straggler_s)
        batch_log = log.of_last_attempt if log else ""
        verdict = judge(plan, nodes, queue, stop_requested=run.is_stop_requested(), batch_log=batch_log)
        verdict = _as_recorded(run, verdict, attempt)
        is_settled = verdict.state is not RunState.LOST or queue is None or missing is not None
        if is_settled or time.monotonic() > deadline:
            return Status(verdict, nodes, queue, attempt, missing=missing)
        time.sleep(POLL_S)


def observe_folders(
    folders: Sequence[AttemptFolder], *, straggler_s: float | None
) -> tuple[tuple[NodeObservation, ...], NodesError | None]:
    """Query the machines at the same time; return the observations and the failures, None if there are none."""
    results: Sequence[list[NodeObservation] | OrchError | None]
    if straggler_s is None:
        results = map_parallel(folders, _reports, limit=len(folders))
    else:
        results = map_but_stragglers(folders, _reports, limit=len(folders), wait_s=straggler_s)
    nodes = tuple(node for result in results if isinstance(result, list) for node in result)
    named = zip(folders, results, strict=True)
    answers = [Unreachable(folder.name, NO_ANSWER) if result is None else result for folder, result in named]
    return nodes, failed_nodes(answers)


def judge_observations(
    run: KeptRun, plan: LaunchPlan, nodes: tuple[NodeObservation, ...], missing: NodesError | None
) -> Status:
    """The status of a run without a scheduler."""
    verdict = judge(plan, nodes, None, stop_requested=run.is_stop_requested())
    verdict = _as_recorded(run, verdict, plan.attempt)
    return Status(verdict, nodes, None, plan.attempt, missing=missing)


def _as_recorded(run: KeptRun, verdict: Verdict, attempt: int) -> Verdict:
    """The verdict of the supervisor on this attempt, if it has judged it as failed; else the given one."""
    with suppress(RunNotFound):
        return known_failure(run.read(), verdict, attempt)
    return verdict


def _reports(folder: AttemptFolder) -> list[NodeObservation]:
    if folder.failure is not None:
        raise folder.failure
    return folder.endpoint.observe(folder.attempt_dir, folder.nodes)


def may_still_run(plan: LaunchPlan, verdict: Verdict, nodes: Sequence[NodeObservation]) -> list[str]:
    """
    The nodes on which processes of a failed or stopped run may still run, including nodes that were not reached.

    Empty under Slurm, which ends the processes itself before the verdict is final.
    """
    if plan.by_scheduler or verdict.state not in {RunState.FAILED, RunState.STOPPED}:
        return []
    ended = {node.node for node in nodes if node.finished is not None or not node.alive}
    return [node.name for node in plan.nodes if node.name not in ended]


def running_nodes(plan: LaunchPlan, nodes: Sequence[NodeObservation]) -> list[str]:
    """The nodes of a run over SSH whose agents are alive; Slurm ends a job's processes itself."""
    return [node.node for node in nodes if not plan.by_scheduler and node.alive and node.finished is None]


def recordable_verdict(plan: LaunchPlan, verdict: Verdict, nodes: Sequence[NodeObservation]) -> Verdict:
    """
    The verdict that a read-only command may record: final only if no process of the run may still run.

    No supervisor watches a run whose record is final, so nothing would end the remaining processes.
    """
    if running := may_still_run(plan, verdict, nodes):
        message = "; ".join(filter(None, (verdict.message, f"{fold(running)} may still run")))
        return replace(verdict, state=RunState.RUNNING, message=message)
    return verdict


def is_left_to_supervisor(run: KeptRun, plan: LaunchPlan, verdict: Verdict) -> bool:
    """True if an attempt has failed and the run's supervisor is there: it alone knows whether another one follows, and the whole cause."""
    has_failed = verdict.state in {RunState.FAILED, RunState.LOST}
    return has_failed and not plan.by_scheduler and run.supervisor() is not None


def still_running_warning(run: KeptRun, run_id: str, nodes: Sequence[str]) -> str:
    """The warning that no supervisor will end a run on the nodes where it may still run; empty if one will, or without nodes."""
    supervisor = run.supervisor()
    pid = stopped_pid(supervisor)
    if not nodes or (supervisor is not None and pid is None):
        return ""
    cause = "nobody supervises it" if pid is None else f"its supervisor, {supervisor}, is stopped"
    remedy = f"orch attach {run_id}" if pid is None else f"kill -CONT {pid}"
    return f"run {run_id} may still run on {fold(nodes)}, and {cause}: `{remedy}` or `orch stop {run_id}` ends what is left"


def stopped_pid(supervisor: SupervisorProcess | None) -> int | None:
    """The pid of a supervisor that a signal (SIGSTOP) has stopped on this machine, else None."""
    if supervisor is None or supervisor.pid is None or supervisor.host != socket.gethostname():
        return None
    fields = stat_fields(supervisor.pid)
    return supervisor.pid if fields is not None and fields[0] in "Tt" else None


def stopped_agents(nodes: Sequence[NodeObservation], run_id: str) -> list[str]:
    """A warning per node whose agent a signal has stopped: it neither notices the exit of a rank nor enforces a time limit."""
    stopped = [(node.node, node.agent.pid) for node in nodes if node.stopped and node.agent is not None]
    return [
        f"the agent on {name} is stopped (SIGSTOP): `kill -CONT {pid}` there continues it, `orch stop {run_id}` ends the run"
        for name, pid in stopped
    ]
