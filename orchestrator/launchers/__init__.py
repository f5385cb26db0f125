"""The launchers, and the choice of one for a plan. To add a launcher, add a module here and a line below."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.endpoint.access import Terminal, between_prompts, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan
from orchestrator.progress import OnProgress, no_progress


def launcher_for(
    plan: LaunchPlan,
    terminal: Terminal | None = None,
    on_progress: OnProgress = no_progress,
    connected: Mapping[str, Endpoint] = MappingProxyType({}),
) -> Launcher:
    """
    The launcher of a plan.

    Args:
        terminal: for the prompts of logins; by default this process's terminal.
        on_progress: takes the progress of work on many nodes, except while a login prompts.
        connected: connections that exist, by node, for a launcher without a scheduler.
    """
    if plan.launcher == "slurm":  # its modules are a tenth of those that a launch over SSH imports
        from orchestrator.launchers.slurm.allocation import AllocationLauncher
        from orchestrator.launchers.slurm.host import slurm_host
        from orchestrator.launchers.slurm.launcher import SlurmLauncher

        return (SlurmLauncher if plan.allocation is None else AllocationLauncher)(
            plan, slurm_host(plan, terminal), terminal
        )
    return direct_launcher(plan, terminal, on_progress, connected)


def direct_launcher(
    plan: LaunchPlan,
    terminal: Terminal | None = None,
    on_progress: OnProgress = no_progress,
    connected: Mapping[str, Endpoint] = MappingProxyType({}),
) -> DirectLauncher:
    """The launcher of a plan whose nodes orch connects to without a scheduler."""
    return DirectLauncher(
        plan,
        transport_factory(plan.transport, plan.ssh, terminal),
        connected,
        on_progress=between_prompts(on_progress),
    )
