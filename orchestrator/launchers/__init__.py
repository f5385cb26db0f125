"""The launchers, and which of them carries out a plan. A new launcher is a module here and a line below."""

from __future__ import annotations

from orchestrator.endpoint.access import Terminal, transport_factory
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.plan.plan import LaunchPlan


def launcher_for(plan: LaunchPlan, terminal: Terminal | None = None) -> Launcher:
    """The launcher of a plan; `terminal` is where it asks what a login asks, by default this process's own."""
    if plan.launcher == "slurm":
        return SlurmLauncher(plan, slurm_host(plan, terminal), terminal)
    return direct_launcher(plan, terminal)


def direct_launcher(plan: LaunchPlan, terminal: Terminal | None = None) -> DirectLauncher:
    """The launcher of a plan whose nodes orch reaches itself."""
    return DirectLauncher(plan, transport_factory(plan.transport, plan.ssh, terminal))
