"""Facts that a launch learns from the nodes or the scheduler before it starts anything, and the plan that follows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from orchestrator.errors import UsageError
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.names.slurm_options import default_warn_s, option_value


@dataclass(frozen=True, slots=True)
class Facts:
    """A part of these facts; what is None or empty is not known by it, or changes nothing."""

    warnings: tuple[str, ...] = ()
    is_shared: bool | None = None
    """Over SSH, whether the nodes share the folder of the run; under Slurm, whether they share the workdir with the submitting machine."""
    defaults: Mapping[str, Mapping[str, str]] | None = None
    """The variables that were discovered for the ranks of each node."""
    unusable_spares: Collection[str] = ()
    lacks_cores: bool = False
    """Slurm gives the job's GPUs no cores by itself (no DefCpuPerGPU), and the job requests none."""
    time_limit_s: float | None = None
    """The limit that the cluster sets for a job that requests none; infinite if it is not known."""
    gres: str | None = None
    """The cards of each node of the job in which the run is a step, such as `gpu:8`; empty if it has none."""


def resolve(plan: LaunchPlan, facts: Facts) -> LaunchPlan:
    """
    The plan as it is carried out, by these facts; several parts may be added one after the other.

    Raises:
        UsageError: what was requested is impossible by these facts.
    """
    plan = replace(plan, warnings=(*plan.warnings, *facts.warnings))
    if plan.by_scheduler:
        return _on_cluster(plan, facts)
    if facts.is_shared:
        plan = replace(plan, is_shared=True)
    if facts.defaults is not None:
        nodes = tuple(replace(node, defaults=facts.defaults.get(node.name, {})) for node in plan.nodes)
        plan = replace(plan, nodes=nodes)
    return replace(plan, spares=tuple(node for node in plan.spares if node.name not in facts.unusable_spares))


def _on_cluster(plan: LaunchPlan, facts: Facts) -> LaunchPlan:
    slurm, warnings = dict(plan.slurm), list(plan.warnings)
    if facts.lacks_cores:
        slurm["cpus"] = max(len(node.ranks) for node in plan.nodes)
        warnings.append(
            f"Slurm has no DefCpuPerGPU for this job, so it requests {slurm['cpus']} cores per node, one per rank; "
            "slurm.cpus, or --set slurm.cpus=N, requests more"
        )
    may_set_warning = option_value(plan.slurm, "time") is None and not slurm["is_warn_s_given"]
    if facts.time_limit_s is not None and may_set_warning:  # a job is warned early enough of a short limit
        slurm["warn_s"] = default_warn_s(facts.time_limit_s)
    if facts.gres is not None:  # otherwise Slurm would give the step the cards per task that the job requests
        slurm["gres"] = facts.gres or None
    plan = replace(plan, slurm=slurm, warnings=tuple(warnings))
    return _unshared(plan) if facts.is_shared is False else plan


def _unshared(plan: LaunchPlan) -> LaunchPlan:
    """Without retries: a checkpoint is on one node only, so another attempt could not resume from it."""
    if plan.program.until_head:  # the other nodes cannot see that the program of the first one is done
        raise UsageError(
            f"--until-head needs a workdir that all nodes share, and {plan.head.workdir} is not",
            hint="name a shared folder as workdir in the inventory, or start the run with `orch ssh-launch`",
        )
    warning = (
        f"workdir {plan.head.workdir} is not shared with the nodes: files and logs travel over SSH, checkpoints stay on the "
        "node of rank 0, the nodes are not checked, and a job that fails or is preempted does not restart by itself"
    )
    slurm = {**plan.slurm, "shared": False, "requeue": "never"}
    return replace(plan, slurm=slurm, max_retries=0, is_checked_in_job=False, warnings=(*plan.warnings, warning))
