"""Submits the batch script from this machine through submitit, and parses the output of sbatch. Only this file uses submitit."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LaunchError
from orchestrator.launchers.slurm.environment import removed_from_sbatch, without
from orchestrator.node.system.files import absolute_path, expanded_argument
from orchestrator.plan.files import sbatch_command, sbatch_path
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.sbatch import sbatch_options

if TYPE_CHECKING:
    import submitit

NOT_REACHED = "(connect failure)"  # printed by sbatch if its request did not reach slurmctld
FATAL = "fatal: "  # printed by sbatch if it ends before it sends a request
NO_CONFIGURATION = (
    "set SLURM_CONF, or load the site's module (module load slurm); slurm: {login: HOST} uses the Slurm of a login node"
)
# A pattern of sbatch's message -> the next step; the first pattern that matches applies.
_HINTS = {
    re.escape(NOT_REACHED): "scontrol ping shows whether slurmctld is up",
    r"fatal: .*configuration": NO_CONFIGURATION,
    r"accounting/QOS policy": "a limit of the QOS or the account is exceeded; `sacctmgr show qos` and `sacctmgr show associations user=$USER` list them",
    r"account": "set slurm.account in the inventory; `sacctmgr show associations user=$USER` lists your accounts",
    r"\bqos\b": "set slurm.qos in the inventory; `sacctmgr show associations user=$USER format=qos` lists yours",
    r"unrecognized option|invalid option": "it is in slurm.options of the inventory; `sbatch --help` lists what this version takes",
}


def preload() -> None:
    """Import submitit before it is needed: it loads asyncio and more."""
    import submitit.slurm.slurm  # noqa: F401


def submit(plan: LaunchPlan) -> str:
    """
    Submit the batch script once; returns the job id.

    Raises:
        LaunchError: sbatch refused it, or printed no job id.
    """
    from submitit.core.utils import FailedJobError  # imported when needed
    from submitit.helpers import clean_env
    from submitit.slurm.slurm import SlurmExecutor

    folder, script = (Path(absolute_path(path)) for path in (plan.attempt_dir(plan.head), sbatch_path(plan)))

    class RenderedScript(SlurmExecutor):
        """submitit's SlurmExecutor, which submits the script that orch rendered instead of a generated script."""

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return script.read_text("utf-8")

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return [expanded_argument(word) for word in sbatch_command(plan)]

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            """submitit takes the first `job N`, which may be in a line that a wrapper of the site prints."""
            output = string if isinstance(string, str) else string.decode()
            if job := job_id(output):
                return job
            raise LaunchError(f"this machine: sbatch gave no job id: {output!r}")

    environment = without(os.environ, removed_from_sbatch(sbatch_options(plan)))
    kept = {name: value for name, value in environment.items() if name.startswith(("SLURM_", "SBATCH_"))}
    # Ctrl-C and `orch stop` wait until the job id is known, so that the job can be cancelled
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with clean_env():  # without the variables of a job that orch may run in
            os.environ.update(kept)
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
    """The error for a failed sbatch, with the lines that sbatch and plug-ins of the site printed."""
    printed = re.findall(r"^sbatch: (?:error: )?(.*)$", stderr, re.MULTILINE)
    # without rulers, and without the advice after a wrong option
    lines = [line for line in printed if re.search(r"\w", line) and not line.startswith("Try ")]
    reason = "; ".join(lines) or (stderr.strip().splitlines() or ["it printed nothing"])[-1]
    hints = (hint for pattern, hint in _HINTS.items() if re.search(pattern, reason, re.IGNORECASE))
    return LaunchError(f"sbatch refused the job: {reason}", hint=next(hints, "sinfo shows partitions and limits"))
