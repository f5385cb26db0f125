"""Starts the agents through Slurm: our batch script, submitted and cancelled by submitit. The only file that knows it."""

from __future__ import annotations

import os
import shutil
import signal
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
from orchestrator.launchers.slurm_queue import ask, find, run_here
from orchestrator.plan import LaunchPlan, NodePlan
from orchestrator.transports.base import Transport
from orchestrator.transports.endpoint import Endpoint

if TYPE_CHECKING:
    import submitit

KILL_WAIT_S = 60.0  # Slurm's KillWait is 30 s by default, between TERM and KILL
POLL_S = 0.5


class SlurmLauncher:
    """Works from a machine with sbatch, on a workdir that this machine and the compute nodes share."""

    def __init__(self, plan: LaunchPlan, transport: Callable[[NodePlan], Transport]) -> None:
        self._plan = plan
        self._transport = transport
        self._connection: Endpoint | None = None

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
        return submit(Path(plan.attempt_dir(head)), Path(plans.sbatch_path(plan)))

    def undo(self) -> list[str]:
        """Cancel the job that was submitted, if one was."""
        return self.stop(None, grace_s=0.0)

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
        job = job or find(run_here, self._plan.run_id)
        return None if job is None else ask(run_here, job)

    def stop(self, job: str | None, *, grace_s: float) -> list[str]:
        """Cancel the job, and wait until Slurm has ended every step of it."""
        job = job or find(run_here, self._plan.run_id)
        if job is None:
            return []
        run_here(["scancel", job])
        deadline = time.monotonic() + grace_s + KILL_WAIT_S
        while not (queue := ask(run_here, job)).over and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if queue.over:
            return []
        return [f"Slurm job {job} is still {queue.word} {queue.reason}".strip()]

    def close(self) -> None:
        """Close the connection to the shared workdir."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _endpoint(self) -> Endpoint:
        if self._connection is None or not self._connection.connected:
            self._connection = Endpoint.connect(self._transport(self._plan.head), self._plan.head.python)
        return self._connection


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
        raise LaunchError(
            f"sbatch refused the job: {_reason(str(exc))}", hint="sinfo shows partitions and limits"
        ) from exc
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return str(job.job_id)


def _reason(text: str) -> str:
    """The lines that sbatch itself printed."""
    lines = [line.removeprefix("sbatch: error: ") for line in text.splitlines() if line.startswith("sbatch: error: ")]
    return "; ".join(lines) or text.strip().splitlines()[-1]
