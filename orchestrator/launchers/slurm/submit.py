"""Submits the batch script from this machine through submitit, and parses the output of sbatch. Only this file uses submitit."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LaunchError
from orchestrator.plan.files import sbatch_command, sbatch_path
from orchestrator.plan.plan import LaunchPlan

if TYPE_CHECKING:
    import submitit

NOT_REACHED = "(connect failure)"  # printed by sbatch if its request did not reach slurmctld


def preload() -> None:
    """Import submitit before it is needed: it loads asyncio and more."""
    import submitit.slurm.slurm  # noqa: F401, PLC0415


def submit(plan: LaunchPlan) -> str:
    """
    Submit the batch script once; returns the job id.

    Raises:
        LaunchError: sbatch refused it, or printed no job id.
    """
    from submitit.core.utils import FailedJobError  # noqa: PLC0415  imported when needed
    from submitit.helpers import clean_env  # noqa: PLC0415
    from submitit.slurm.slurm import SlurmExecutor  # noqa: PLC0415

    folder, script = (Path(path).expanduser() for path in (plan.attempt_dir(plan.head), sbatch_path(plan)))

    class RenderedScript(SlurmExecutor):
        """submitit's SlurmExecutor, which submits the script that orch rendered instead of a generated script."""

        def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002
            return script.read_text("utf-8")

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:  # noqa: ARG002
            return [str(Path(word).expanduser()) if word.startswith("~/") else word for word in sbatch_command(plan)]

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            """submitit takes the first `job N`, which may be in a line that a wrapper of the site prints."""
            output = string if isinstance(string, str) else string.decode()
            if job := job_id(output):
                return job
            raise LaunchError(f"this machine: sbatch gave no job id: {output!r}")

    conf = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    # Ctrl-C and `orch stop` wait until the job id is known, so that the job can be cancelled
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with (
            clean_env()
        ):  # a job submitted from within a job must not inherit its SLURM_* variables, except the cluster
            os.environ.update(conf)
            executor = RenderedScript(folder)
            job: submitit.Job[Any] = executor._submit_command("")  # noqa: SLF001  the documented override point
    except FailedJobError as exc:
        raise refusal(str(exc)) from exc
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return str(job.job_id)


def job_id(output: str) -> str | None:
    """The job id in the output of `sbatch --parsable`: the last line of the form `ID` or `ID;CLUSTER`; None if there is none."""
    # wrappers and plug-ins of a site print more lines
    found = re.findall(r"^([0-9]+)(?:;.*)?$", output, re.MULTILINE)
    return str(found[-1]) if found else None


def refusal(stderr: str) -> LaunchError:
    """The error for a failed sbatch, with the lines that sbatch itself printed."""
    lines = [line.removeprefix("sbatch: error: ") for line in stderr.splitlines() if line.startswith("sbatch: error: ")]
    reason = "; ".join(lines) or (stderr.strip().splitlines() or ["it printed nothing"])[-1]
    is_down = NOT_REACHED in reason
    hint = "scontrol ping shows whether slurmctld is up" if is_down else "sinfo shows partitions and limits"
    return LaunchError(f"sbatch refused the job: {reason}", hint=hint)
