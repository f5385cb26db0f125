"""Starts the agents through Slurm: submits a batch script on the machine that has sbatch and the workdir of the nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.endpoint.access import Terminal
from orchestrator.errors import LaunchError, NodeError, NodesError
from orchestrator.launchers.base import AttemptFolder
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.launchers.job import GONE, SILENT, JobStatus
from orchestrator.launchers.push import push_bundle, write_files
from orchestrator.launchers.slurm import environment, unshared_workdir
from orchestrator.launchers.slurm.host import SlurmHost
from orchestrator.launchers.slurm.queue import array_id, job_statuses, queue_position
from orchestrator.launchers.slurm.submit import FATAL, NOT_REACHED
from orchestrator.plan.files import node_files, shared_files
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import Facts
from orchestrator.plan.sbatch import needs_cpus, sbatch_options
from orchestrator.portable.names.hostlist import expand
from orchestrator.portable.names.slurm_options import option_value, requests_gpus, time_limit_s

if TYPE_CHECKING:
    from orchestrator.code.bundle import Bundle
    from orchestrator.endpoint.logs import BatchLog

SILENT_S = 15.0  # a stop waits for a slurmctld that does not answer, such as while it restarts
CANCEL_S = 60.0  # Slurm's KillWait is 30 s by default, between TERM and KILL
POLL_S = 0.5
LOG_DELAY_S = 90.0  # NFS clients look for new files in a folder every 60 s at the latest, by default
# Errors of sbatch, in all versions, after which Slurm may have accepted the job.
UNCERTAIN_ERRORS = (
    "timed out",
    "Zero Bytes",
    "receive failure",
    "shutdown failure",
    "Unexpected message",
    "reset by peer",
)
_NOISE = re.compile(r"^srun: cluster configuration lacks support for cpu binding\n", re.MULTILINE)
SEARCH_S, LATE_JOB_S = 60.0, 5.0  # a busy slurmctld may handle a request after sbatch has timed out


class SlurmLauncher:
    """Works on the host that has Slurm: this machine, or a login node over SSH."""

    def __init__(self, plan: LaunchPlan, host: SlurmHost, terminal: Terminal | None = None) -> None:
        self._plan = plan
        self._host = host
        self._terminal = terminal
        self._is_unshared: bool | None = None
        self._ssh_launcher: DirectLauncher | None = None
        self._may_be_submitted = False
        self._has_log = False

    @property
    def plan(self) -> LaunchPlan:
        """The plan that was started; before that, the one that is to be."""
        return self._plan

    def connect(self, plan: LaunchPlan) -> Facts:
        """Check that the host can submit, that the cluster can run the job, and that the nodes' Python is there."""
        from orchestrator.launchers.slurm.checks import (  # only before a submission
            cards_not_requested,
            check,
            gives_gpus_cores,
            time_limit_of_partition_s,
        )

        with self._host_errors():
            self._host.require_sbatch()
            run, variables, options = self._host.run, self._host.environment(), sbatch_options(plan)
            applied = environment.applied(variables, options)
            partition = applied.get("SBATCH_PARTITION")
            warnings = check(run, plan, partition, has_qos="SBATCH_QOS" in applied)
            is_open = needs_cpus(plan) and requests_gpus(plan.slurm) and "SBATCH_CPUS_PER_GPU" not in applied
            lacks_cores = is_open and not gives_gpus_cores(run, plan, partition)
            limit_s = None
            if option_value(plan.slurm, "time") is None:
                given = time_limit_s(applied.get("SBATCH_TIMELIMIT", ""))
                limit_s = given or time_limit_of_partition_s(run, plan, partition)
            warnings += cards_not_requested(run, plan, applied)
            warnings += environment.warnings(variables, options, self._host.name)
            self._host.endpoint()
        return Facts(tuple(warnings), lacks_cores=lacks_cores, time_limit_s=limit_s)

    def push(self, plan: LaunchPlan, bundle: Bundle) -> Facts:
        """Write the code to the workdir; find out whether the nodes share it."""
        with self._host_errors():
            endpoint = self._host.endpoint()
            push_bundle(endpoint, plan.head.workdir, bundle)
            write_files(endpoint, plan.run_dir(plan.head), shared_files(plan, plan.head))
            if self._is_unshared is None:
                self._is_unshared = unshared_workdir.nodes_lack_files(plan, self._host)
        return Facts(is_shared=not self._is_unshared)

    def write(self, plan: LaunchPlan, bundle: Bundle) -> None:
        """Write all files of a run to the workdir, and on each node if the nodes do not share it."""
        files = node_files(plan)[plan.head.name]
        with self._host_errors():
            write_files(self._host.endpoint(), plan.run_dir(plan.head), files)
        if unshared_workdir.is_unshared(plan):
            nodes = self._nodes_over_ssh()
            nodes.push(plan, bundle)
            nodes.write(plan, {node.name: files for node in plan.nodes})

    def start(self, plan: LaunchPlan, bundle: Bundle) -> str | None:
        """Write the files and submit; returns Slurm's job id."""
        self._plan = plan
        self.write(plan, bundle)
        with self._host_errors():
            self._may_be_submitted = True
            try:
                return self._host.submit(plan)
            except LaunchError as refusal:
                return self._accepted_job(refusal)

    def undo(self) -> list[str]:
        """Cancel the job if it was submitted or is being submitted."""
        return self.stop(None, grace_s=0.0) if self._may_be_submitted else []

    def attempt(self) -> int:
        """Read from the run's folder: Slurm begins another attempt when it requeues the job."""
        with self._host_errors():
            trace = self._host.trace(self._plan)
        return trace.attempt if trace else 1

    def attempt_folders(
        self, attempt: int, nodes: Collection[str] | None = None, *, connect: bool = True
    ) -> Sequence[AttemptFolder]:
        """One shared folder, in which the nodes appear once they have started; one per node if the workdir is not shared."""
        if unshared_workdir.is_unshared(self._plan):
            return self._nodes_over_ssh().attempt_folders(attempt, nodes, connect=connect)
        with self._host_errors():
            self._host.endpoint()
        return [
            AttemptFolder(self._host.endpoint, replace(self._plan, attempt=attempt).attempt_dir(self._plan.head), None)
        ]

    def job_status(self, job: str | None) -> JobStatus | None:
        """The job's status by Slurm; a job whose id was not recorded is found by its folder."""
        with self._host_errors():
            return self._query_job(job)

    def batch_log(self, max_bytes: int) -> BatchLog | None:
        """Read from the shared folder, without a message of srun that every job has on a cluster without TaskPlugin."""
        with self._host_errors():
            trace = self._host.trace(self._plan, log_bytes=max_bytes)
        log = trace.batch_log if trace else None
        return None if log is None else replace(log, text=_NOISE.sub("", log.text))

    def position(self, status: JobStatus) -> str:
        """The position in the job's partition."""
        with self._host_errors():
            return queue_position(self._host.run, status)

    def stop(self, job: str | None, *, grace_s: float) -> list[str]:
        """Cancel the job, and wait until Slurm has ended every step of it."""
        try:
            if job is None:
                submitted = self._host.withdraw(self._plan)
                job = submitted if self._plan.sweep is None else None  # Slurm lists the tasks of an array, not its id
            return self._cancel(job, time.monotonic() + grace_s + CANCEL_S)
        except NodeError as exc:
            subject = f"job {job}" if job else f"a job named {self._plan.job_name}, if there is one,"
            return [f"{exc}; {subject} was not cancelled"]

    def _cancel(self, job: str | None, deadline: float) -> list[str]:
        """Cancel the job and wait until Slurm reports it over. A job in another folder is not the run's, whatever its id."""
        is_cancelled, answered_s = False, time.monotonic()
        while (status := self._query_job(job)) is not None:
            if status.state != SILENT:
                answered_s = time.monotonic()
            elif not status.absent and time.monotonic() - answered_s >= SILENT_S:
                return [_silent_text(status.job or job, self._plan.run_id, status.reason, is_cancelled=is_cancelled)]
            if status.job and not self._is_own(status):
                problem = f"Slurm job {status.job} ({status.name}) does not run in the folder of {self._plan.job_run}"
                lists = f"`squeue --me --name={self._plan.job_name}` lists the run's job, and `scancel ID` ends it"
                return [f"{problem}: it was not cancelled; {lists}"]
            if job is None and status.job and self._plan.sweep and not self._may_be_submitted:  # `undo` ends all runs
                job = f"{array_id(status.job)}_{self._plan.sweep.runs.index(self._plan.run_id)}"
                continue
            if status.over:
                break
            if status.absent or time.monotonic() > deadline:
                name = status.job or job or self._plan.run_id
                last_status = status.reason if status.state == SILENT else f"{status.state} {status.why}".strip()
                return [f"Slurm job {name} is not known to be over: {last_status}"]
            # as soon as Slurm answers, and a second time if the job was requeueing itself
            if status.job and (not is_cancelled or status.waits):
                is_cancelled = self._host.run(["scancel", job or array_id(status.job)]).returncode == 0
            time.sleep(POLL_S)
        return []

    def _is_own(self, status: JobStatus) -> bool:
        """Return whether the job is the run's. Accounting reports no folder: there, and for a job that is gone, the name decides."""
        if status.state == GONE or status.run_id == self._plan.job_run:
            return True
        return status.over and not status.run_id and status.name == self._plan.job_name

    def close(self) -> None:
        """Close the connections."""
        if self._ssh_launcher is not None:
            self._ssh_launcher.close()
        self._host.close()

    def _nodes_over_ssh(self) -> DirectLauncher:
        """A launcher that reaches the nodes: those that Slurm has chosen, or all candidates if that is not known."""
        if self._ssh_launcher is None:
            status = self.job_status(None) if self._plan.by_count else None
            chosen = expand(status.nodes) if status is not None and status.nodes else []
            nodes = tuple(node for node in self._plan.nodes if node.name in chosen) or self._plan.nodes
            self._ssh_launcher = unshared_workdir.nodes_over_ssh(
                replace(self._plan, nodes=nodes), self._host, self._terminal
            )
        return self._ssh_launcher

    def _query_job(self, job: str | None) -> JobStatus | None:
        run_id = self._plan.job_run
        status = job_statuses(self._host.run, {run_id: job})[run_id]
        return None if status is None else self._with_log_warning(status)

    def _with_log_warning(self, status: JobStatus) -> JobStatus:
        """
        Add to the reason if the job's log should be in the run's folder by now but is not.

        The log is the first file there, written by Slurm on the first node: it shows at no cost whether the folder is shared.
        """
        if (
            self._has_log
            or unshared_workdir.is_unshared(self._plan)
            or not (status.over or status.state == "RUNNING")
            or status.state == "CANCELLED"
            or status.never_ran
        ):
            return status
        trace = self._host.trace(self._plan)
        self._has_log = trace is None or trace.batch_log is not None  # None: the folder was removed since
        if self._has_log or (not status.over and time_limit_s(status.elapsed) < LOG_DELAY_S):
            return status
        folder = f"{self._plan.run_dir(self._plan.head)} on {self._host.name}"
        remark = unshared_workdir.missing_log(status, folder)
        return replace(status, reason=f"{status.reason}; {remark}" if status.reason else remark)

    def _accepted_job(self, refusal: LaunchError) -> str:
        """
        Return the id of a job that Slurm accepted although sbatch failed, as after a time-out: it is not submitted twice.

        If no node can run a job, slurmctld refuses it but keeps a FAILED record of it: that job was not accepted.

        Raises:
            LaunchError: the refusal; Slurm has no such job, or does not answer.
        """
        message = str(refusal)
        wait_s = SEARCH_S if any(error in message for error in UNCERTAIN_ERRORS) else 0.0
        is_unsent = NOT_REACHED in message or FATAL in message
        status = None if is_unsent else self._find_by_folder(wait_s)
        if status is not None and status.job and not status.never_ran:
            return array_id(status.job)
        self._may_be_submitted = status is not None and not status.never_ran
        raise refusal

    def _find_by_folder(self, wait_s: float) -> JobStatus | None:
        """Find the run's job by its folder; None if Slurm has reported for LATE_JOB_S that there is none."""
        deadline = time.monotonic() + wait_s
        while (status := self._query_job(None)) is None or not status.job:
            if status is None:
                deadline = min(deadline, time.monotonic() + LATE_JOB_S)
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        return status

    @contextmanager
    def _host_errors(self) -> Iterator[None]:
        """Raise the host's errors as a NodesError."""
        try:
            yield
        except NodeError as exc:
            raise NodesError([exc], 1) from exc


def _silent_text(job: str | None, run: str, reason: str, *, is_cancelled: bool) -> str:
    """The sentence about a job that cannot be ended because slurmctld does not answer."""
    if is_cancelled:
        return (
            f"Slurm job {job or run} was cancelled, and is not known to be over: slurmctld does not answer ({reason})"
        )
    return (
        f"Slurm job {job or run} was not cancelled, because slurmctld does not answer ({reason}): `orch stop {run}` cancels it once "
        f"`scontrol ping` reports UP; until then, `orch stop {run} --save --grace 1s` ends its ranks, by a file in their folder"
    )
