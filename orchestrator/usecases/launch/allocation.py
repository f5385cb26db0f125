"""`orch submit --here`: the allocation of the Slurm job in which orch runs."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory
from orchestrator.portable.names.hostlist import expand
from orchestrator.run import Allocation
from orchestrator.usecases.launch_arguments import LaunchArguments

# Fields of `slurm:` that also apply to the steps of a job.
_OF_STEPS = ("setup", "container")


def this_allocation(arguments: LaunchArguments, environ: Mapping[str, str]) -> Allocation:
    """
    The allocation by the variables of the job.

    Raises:
        UsageError: orch does not run in a job, or an option is for a new job.
    """
    options = [setting.title for setting in arguments.slurm_settings if setting.path[0] not in _OF_STEPS]
    retries = [] if arguments.max_retries is None else ["--max-retries"]
    if refused := [*options, *(["--after"] if arguments.after else []), *retries]:
        raise UsageError(
            f"{refused[0]} is for a new job, and --here runs in the allocation of this one",
            hint=f"omit --here to queue a job, or omit {refused[0]}",
        )
    job, nodes = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job or not nodes:
        raise UsageError(
            "--here: this shell is in no Slurm job (SLURM_JOB_ID is not set)",
            hint="salloc -N2 … first, or omit --here to queue a job",
        )
    return Allocation(job, tuple(expand(nodes)))


def for_steps(inventory: Inventory) -> Inventory:
    """The inventory with those fields of `slurm:` that apply to steps; a step is neither requeued nor restarted."""
    kept = inventory.slurm.model_dump(include=set(_OF_STEPS))
    slurm = type(inventory.slurm).model_validate({**kept, "requeue": "never", "max_retries": 0})
    return inventory.model_copy(update={"slurm": slurm})


def queued_warning(environ: Mapping[str, str]) -> list[str]:
    """Warn that a job is queued from within a job, whose nodes it does not get."""
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return []
    return [
        f"this shell is in Slurm job {job}, and another job is queued, which cannot use its nodes; --here runs in job {job}"
    ]
