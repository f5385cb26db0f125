"""Query the nodes and the scheduler for the state of runs, and write it into their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from orchestrator.endpoint.access import Terminal
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodeError, NodesError, RunNotFound
from orchestrator.fanout import map_parallel
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.job import GONE, SILENT, STOPPED, SUSPENDED, JobStatus
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.poll import Poll, describe_job
from orchestrator.launchers.slurm.queue import COMMAND_S, job_statuses
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.findings import Finding
from orchestrator.portable.names.hostlist import fold
from orchestrator.progress import OnProgress, no_progress
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import all_runs, read_runs
from orchestrator.run import RunEntry, RunRecord, RunState
from orchestrator.supervision.queries import observe_by_owner
from orchestrator.verdict import observe
from orchestrator.verdict.failing import waits
from orchestrator.verdict.hangs import hang_findings
from orchestrator.verdict.hardware import hardware_findings
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.last_lines import with_last_lines
from orchestrator.verdict.launching import is_launching
from orchestrator.verdict.observe import Status
from orchestrator.verdict.record_outcome import record_outcome, record_outcome_if_writable
from orchestrator.verdict.replicas import differing_replicas
from orchestrator.verdict.slow_ranks import slow_ranks

__all__ = ["NodeObservation", "Refreshed", "bring_up_to_date", "refresh"]

REFRESHED_AT_ONCE = 8
PATIENCE_S = 5.0
LOST_QUERIED = timedelta(days=7)
NO_ANSWER = "squeue gave no answer"


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A run's record after a refresh, and the evidence for it."""

    folder: RunFolder
    record: RunRecord
    status: Status | None = None
    """None if nothing was queried, because the launch is still in progress or failed."""
    missing: NodesError | None = None
    """The failures of the nodes that did not answer; None if all did, or none was queried."""
    unwritten: str = ""
    """The warning that the new state is not in the record, which cannot be written; else empty."""

    @property
    def nodes(self) -> Sequence[NodeObservation]:
        return self.status.nodes if self.status else ()

    @property
    def queue(self) -> JobStatus | None:
        return self.status.queue if self.status else None

    @property
    def job(self) -> str:
        """The state of the Slurm job in one sentence; empty without one."""
        if self.status is None or self.queue is None:
            return ""
        if self.queue.state == SILENT:
            answer = f"Slurm does not answer ({self.queue.reason}); the state is that of the run's files"
            return f"Slurm job {self.record.slurm_job}: {answer}" if self.record.slurm_job else answer
        if not self.queue.job:
            return ""
        sentence = describe_job(self.queue, self.status.position)
        if self.record.state.ended and self.queue.waits:
            return f"{sentence}; the run is over, and `orch stop {self.record.id}` takes its job out of the queue"
        return sentence

    @property
    def left_running(self) -> list[str]:
        """The nodes on which processes of a run that has ended may still run, or do run although its record is final."""
        if self.status is None:
            return []
        plan = self.folder.read_plan()
        if self.record.state.ended:
            return observe.running_nodes(plan, self.nodes)
        return observe.may_still_run(plan, self.status.verdict, self.nodes)

    @property
    def _is_suspended(self) -> bool:
        return self.queue is not None and self.queue.state in {SUSPENDED, STOPPED}

    def not_being_ended(self) -> str:
        """The warning that the run has failed and no supervisor ends its remaining processes; empty if there is no such case."""
        return observe.still_running_warning(self.folder, self.record.id, self.left_running)

    def stopped_agents(self) -> list[str]:
        """The warnings about agents that a signal has stopped; none if Slurm has suspended the job, as it says itself."""
        if self._is_suspended:
            return []
        return observe.stopped_agents(self.nodes, self.record.id)

    def warnings(self) -> list[str]:
        """The warnings about the supervision and about stopped agents."""
        supervision = self.not_being_ended() or self.unsupervised()
        return [*filter(None, [supervision]), *self.stopped_agents()]

    def findings(self) -> list[Finding]:
        """The findings about the ranks and their hardware; slow ranks and copies of the model that differ, until they are recorded."""
        differing = None if self.record.replicas else differing_replicas(self.nodes)
        slow = None if self.record.slow else slow_ranks(self.nodes)
        compared = [differing, slow.finding if slow else None]
        hangs = [] if self._is_suspended else hang_findings(self.nodes)
        return [*hangs, *hardware_findings(self.nodes), *filter(None, compared)]

    @property
    def waits(self) -> str:
        """The nodes that the next attempt waits for, and until when, as a sentence; empty if it waits for none."""
        text = waits(self.record)
        return text if text and not self.record.state.final and self.folder.supervisor() is not None else ""

    def unsupervised(self) -> str:
        """The warning that nobody supervises a run over SSH, or some nodes, or runs the hooks of a job; empty if there is no such case."""
        record = self.record
        if not record.started or record.state.final:
            return ""
        if record.by_scheduler:  # Slurm supervises its jobs itself
            if not self.folder.read_plan().hooks or self.folder.reporter() is not None:
                return ""
            return f"no process runs the hooks of this run; `orch attach {record.id} --detach` starts one"
        if self.folder.supervisor() is None:
            return f"nobody supervises this run, and it continues; `orch attach {record.id}` supervises it again"
        if not record.unsupervised:
            return ""
        reason = next(iter(record.unsupervised.values()))
        return (
            f"{fold(record.unsupervised)} continue without supervision: the supervisor cannot log in: {reason}; "
            f"`orch attach {record.id}` replaces it by one with the keys of this terminal"
        )


def is_kept_up_to_date(folder: RunFolder) -> bool:
    """True if the run's supervisor runs on this machine, so that the record need only be read."""
    supervisor = folder.supervisor()
    return supervisor is not None and observe.stopped_pid(supervisor) is None


def refresh(
    folder: RunFolder,
    queue: JobStatus | None = None,
    terminal: Terminal | None = None,
    on_progress: OnProgress = no_progress,
    *,
    launcher: Launcher | None = None,
    diagnoses: bool = False,
) -> Refreshed:
    """
    Query the state of a run and update its record; only read the record if the launch is in progress or failed.

    Args:
        queue: the scheduler's answer, if it was queried already.
        terminal: answers the prompts of logins.
        launcher: that of the run, which stays connected; without it, one is made and closed.
        diagnoses: if the run has failed and nothing has diagnosed it, do so now.

    Raises:
        NodesError: no node answers, and the run is not known to be over.
    """
    record = folder.read()
    failed_to_launch = record.state.ended and not record.started
    if failed_to_launch or is_launching(record):
        return Refreshed(folder, record)
    plan = folder.read_plan()
    if not plan.by_scheduler and (refreshed := _refreshed_by_owner(folder, plan, record)):
        return refreshed
    with nullcontext(launcher) if launcher else closing(launcher_for(plan, terminal, on_progress)) as connected:
        try:
            if queue is None and plan.by_scheduler:
                status = _status_of_job(folder, plan, connected, record.slurm_job)
            else:
                status = observe.observe_reachable(folder, plan, connected, queue)
            verdict = _recordable(folder, plan, status)
            if status.is_decided and verdict.state.final and not record.state.ended:
                verdict = with_last_lines(verdict, connected, status.attempt)
        except NodesError as exc:
            if not record.state.final:
                raise
            return Refreshed(folder, record, missing=exc)
        unwritten = ""
        if status.is_decided:
            record, unwritten = record_outcome_if_writable(folder, verdict, status.nodes, attempt=status.attempt)
        if diagnoses and record.is_undiagnosed and not is_kept_up_to_date(folder):
            from orchestrator.usecases.diagnose.failure import diagnose_failure  # only if a run has failed

            record = diagnose_failure(folder, connected, lambda _warning: None) or record
    return Refreshed(folder, record, status, status.missing, unwritten)


def _refreshed_by_owner(folder: RunFolder, plan: LaunchPlan, record: RunRecord) -> Refreshed | None:
    """Let the run's owner query the nodes; None if it does not, or the run is over, whose last lines and cause are then read, too."""
    observed = observe_by_owner(folder)
    if observed is None or not observed[0]:
        return None
    status = observe.judge_observations(folder, plan, *observed)
    verdict = _recordable(folder, plan, status)
    if not status.is_decided:
        return Refreshed(folder, record, status, status.missing)
    if verdict.state.final:
        return None
    record, unwritten = record_outcome_if_writable(folder, verdict, status.nodes, attempt=status.attempt)
    return Refreshed(folder, record, status, status.missing, unwritten)


def _recordable(folder: RunFolder, plan: LaunchPlan, status: Status) -> Verdict:
    verdict = observe.recordable_verdict(plan, status.verdict, status.nodes)
    if observe.is_left_to_supervisor(folder, plan, verdict):
        return Verdict(RunState.RUNNING, message=verdict.message)
    return verdict


def _status_of_job(folder: RunFolder, plan: LaunchPlan, launcher: Launcher, job: str | None) -> Status:
    """Query the nodes and the scheduler, for long only if no agent has started: otherwise the run's files show its state."""

    def query(wait_s: float) -> Status:
        result = poll.first_result(wait_s)
        queue = result.status
        if queue == JobStatus(SILENT):
            queue = JobStatus(SILENT, f"{NO_ANSWER} in {wait_s:.0f} s")
        return replace(observe.observe_reachable(folder, plan, launcher, queue), position=result.position)

    with Poll(launcher, job, launcher.attempt()) as poll:
        status = query(PATIENCE_S)
        is_slow = status.queue is not None and status.queue.reason.startswith(NO_ANSWER)
        has_started = any(node.agent is not None for node in status.nodes)
        return query(COMMAND_S) if is_slow and not has_started else status


def bring_up_to_date() -> list[str]:
    """Refresh all runs that may not have ended, with one query per Slurm; returns warnings."""
    runs, _ = all_runs()
    unended = read_runs([(folder, entry) for folder, entry in runs if may_be_alive(entry)])
    terminal = Terminal()
    queues, warnings = _queues([(folder, record) for folder, record in unended if record.launcher == "slurm"], terminal)

    def work(run: tuple[RunFolder, RunRecord]) -> str:
        folder, record = run
        queue = queues.get(record.id)
        if record.state is RunState.LOST and (queue is None or queue.state in {GONE, SILENT}):
            return ""
        # else the run's folder need not be read: the job is pending, its state is unchanged, or Slurm does not answer
        if queue is None or not (queue.waits or queue.state in {SILENT, record.state.value}):
            refreshed = refresh(folder, queue, terminal)
            return str(refreshed.missing or refreshed.unwritten)
        if queue.waits:
            record_outcome(folder, Verdict(RunState.PENDING, message=queue.why or None), attempt=record.attempt)
        return ""

    outcomes = map_parallel(unended, work, limit=REFRESHED_AT_ONCE)
    pairs = zip(unended, outcomes, strict=True)
    return warnings + [f"{record.id}: {outcome}" for (_, record), outcome in pairs if str(outcome)]


def may_be_alive(record: RunRecord | RunEntry) -> bool:
    """
    True if the run is not over by its record, or was lost recently, and Slurm may have its job after all.

    For a run that was lost earlier, a connection to the login node would be needless; `orch status` queries any run.
    """
    if record.state is RunState.LOST and record.by_scheduler:
        oldest = datetime.now(timezone.utc) - LOST_QUERIED
        return record.ended is None or record.ended > oldest.isoformat()  # both in UTC
    return not record.state.final


def _queues(
    runs: Sequence[tuple[RunFolder, RunRecord]], terminal: Terminal
) -> tuple[Mapping[str, JobStatus | None], list[str]]:
    """Query every Slurm once: its answer for each run, and warnings about login nodes that cannot be reached."""
    plans: dict[str, LaunchPlan] = {}
    for folder, record in runs:
        with suppress(RunNotFound):  # refresh() reports it
            plan = folder.read_plan()
            if plan.allocation is None:  # else the job is the user's, and the run is a step of it
                plans[record.id] = plan
    queues: dict[str, JobStatus | None] = {}
    warnings = []
    for login in {plan.slurm["login"] for plan in plans.values()}:
        at_login = {run_id for run_id, plan in plans.items() if plan.slurm["login"] == login}
        jobs = {record.id: record.slurm_job for _, record in runs if record.id in at_login}
        with closing(slurm_host(plans[next(iter(jobs))], terminal)) as host:
            try:
                queues |= job_statuses(host.run, jobs)
            except NodeError as exc:
                warnings.append(str(exc))
                queues |= dict.fromkeys(jobs, JobStatus(SILENT, str(exc)))
    return queues, warnings
