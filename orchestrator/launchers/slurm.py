"""Starts the agents through Slurm: our batch script, submitted and cancelled by submitit. The only file that knows it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import plan as plans
from orchestrator.bundle import Bundle
from orchestrator.errors import LaunchError
from orchestrator.launchers.base import Place, Queue
from orchestrator.launchers.slurm_checks import check
from orchestrator.launchers.slurm_queue import ask, position, run_here
from orchestrator.plan import LaunchPlan, NodePlan
from orchestrator.transports.base import Transport
from orchestrator.transports.endpoint import Endpoint

if TYPE_CHECKING:
    import submitit

KILL_WAIT_S = 60.0  # Slurm's KillWait is 30 s by default, between TERM and KILL
POLL_S = 0.5
# What sbatch says when Slurm may have taken the job all the same, in whichever version; and when it was not even asked.
IN_DOUBT = ("timed out", "Zero Bytes", "receive failure", "shutdown failure", "Unexpected message", "reset by peer")
NOT_REACHED = "(connect failure)"
DOUBT_S, LATE_S = 60.0, 5.0  # a busy slurmctld comes to what it was sent later than its sender waits


class SlurmLauncher:
    """Works from a machine with sbatch, on a workdir that this machine and the compute nodes share."""

    def __init__(self, plan: LaunchPlan, transport: Callable[[NodePlan], Transport]) -> None:
        self._plan = plan
        self._transport = transport
        self._connection: Endpoint | None = None
        self._connecting = threading.Lock()
        self._may_be_submitted = False

    def connect(self) -> Sequence[str]:
        """Make sure that this machine can submit, that the cluster can run the job, and that there is the nodes' Python."""
        require_sbatch()
        doubts = check(run_here, self._plan)
        self._endpoint()
        return doubts

    def start(self, bundle: Bundle) -> str | None:
        """Write the files to the shared workdir and submit; returns Slurm's job id."""
        plan, head = self._plan, self._plan.head
        endpoint = self._endpoint()
        if not endpoint.prepare(head.workdir, bundle.digest):
            endpoint.put_bundle(head.workdir, bundle.digest, bundle.archive)
        for file in plans.node_files(plan)[head.name]:
            folder, _, name = file.path.rpartition("/")
            endpoint.put_files(folder, [(name, file.text, file.mode)])
        self._may_be_submitted = True
        try:
            return submit(Path(plan.attempt_dir(head)), Path(plans.sbatch_path(plan)))
        except LaunchError as refusal:
            return self._submitted_all_the_same(refusal)

    def undo(self) -> list[str]:
        """Cancel the job that was submitted, if one was."""
        return self.stop(None, grace_s=0.0) if self._may_be_submitted else []

    def attempt(self) -> int:
        """Slurm begins a further one when it requeues the job."""
        trace = self._endpoint().find(self._plan.head.workdir, self._plan.run_id)
        return trace.attempt if trace else 1

    def places(self, attempt: int) -> Sequence[Place]:
        """One place with all nodes: which they are is seen there once they have started."""
        self._endpoint()
        return [Place(self._endpoint, replace(self._plan, attempt=attempt).attempt_dir(self._plan.head), None)]

    def queue(self, job: str | None) -> Queue | None:
        """Slurm's word on the job; one whose id was never recorded is found by its name."""
        run_id = self._plan.run_id
        return ask(run_here, {run_id: job})[run_id]

    def position(self, queue: Queue) -> str:
        """Among the jobs of its partition."""
        return position(run_here, queue)

    def stop(self, job: str | None, *, grace_s: float) -> list[str]:
        """Cancel the job, and wait until Slurm has ended every step of it."""
        deadline, cancelled = time.monotonic() + grace_s + KILL_WAIT_S, False
        while (queue := self.queue(job)) is not None and not queue.over:
            if queue.absent or time.monotonic() > deadline:
                name = queue.job or job or self._plan.run_id
                return [f"Slurm job {name} is not known to be over: {queue.word} {queue.why}".strip()]
            if queue.job and not cancelled:  # Slurm answers
                cancelled = run_here(["scancel", queue.job]).returncode == 0
            time.sleep(POLL_S)
        return []

    def close(self) -> None:
        """Close the connection to the shared workdir."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _endpoint(self) -> Endpoint:
        with self._connecting:  # readers of the log and of the queue have threads of their own
            if self._connection is None or not self._connection.connected:
                self._connection = Endpoint.connect(self._transport(self._plan.head), self._plan.head.python)
            return self._connection

    def _submitted_all_the_same(self, refusal: LaunchError) -> str:
        """
        The id of a job that Slurm took though sbatch failed, as after a time-out: it is not submitted twice.

        Raises:
            LaunchError: the refusal; Slurm has no such job, or does not say.
        """
        said = str(refusal)
        patience_s = DOUBT_S if any(word in said for word in IN_DOUBT) else 0.0
        queue = None if NOT_REACHED in said else self._sought(patience_s)
        if queue is not None and queue.job:
            return queue.job
        self._may_be_submitted = queue is not None
        raise refusal

    def _sought(self, patience_s: float) -> Queue | None:
        """The run's job by its name; None once Slurm has said for a while that there is none."""
        deadline = time.monotonic() + patience_s
        while (queue := self.queue(None)) is None or not queue.job:
            if queue is None:
                deadline = min(deadline, time.monotonic() + LATE_S)
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        return queue


def require_sbatch() -> None:
    """
    Make sure that jobs can be submitted from here.

    Raises:
        LaunchError: there is no sbatch or srun on PATH.
    """
    missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
    if missing:
        raise LaunchError(
            f"no {' and no '.join(missing)} on PATH: Slurm jobs cannot be submitted from this machine",
            hint="run orch on the cluster's login node, or use orch ssh-launch",
        )


def submit(folder: Path, script: Path) -> str:
    """
    Submit the batch script once; returns the job id.

    Raises:
        LaunchError: sbatch refused it.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415  imported when needed
    from submitit.helpers import clean_env  # noqa: PLC0415
    from submitit.slurm.slurm import SlurmExecutor  # noqa: PLC0415

    class OwnScript(SlurmExecutor):
        """submitit with the script that orch rendered in place of its own."""

        def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002
            return script.read_text("utf-8")

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:  # noqa: ARG002
            return ["sbatch", str(script)]

    conf = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    # Ctrl-C waits until the job id is known: what was submitted can then be cancelled
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with clean_env():  # a job submitted from within a job must not inherit its SLURM_*, but its cluster stays
            os.environ.update(conf)
            executor = OwnScript(folder)
            job: submitit.Job[Any] = executor._submit_command("")  # noqa: SLF001  the documented override point
    except (FailedJobError, FailedSubmissionError) as exc:
        why = _reason(str(exc))
        hint = (
            "scontrol ping shows whether slurmctld is up" if NOT_REACHED in why else "sinfo shows partitions and limits"
        )
        raise LaunchError(f"sbatch refused the job: {why}", hint=hint) from exc
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return str(job.job_id)


def _reason(text: str) -> str:
    """The lines that sbatch itself printed."""
    lines = [line.removeprefix("sbatch: error: ") for line in text.splitlines() if line.startswith("sbatch: error: ")]
    return "; ".join(lines) or text.strip().splitlines()[-1]
