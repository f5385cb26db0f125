"""The machine that runs Slurm's commands for orch: this machine, or a login node over SSH."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.endpoint.access import PlannedSsh, Terminal, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.observation import RunTrace
from orchestrator.launchers.slurm.login_node import LoginNode, login_node
from orchestrator.launchers.slurm.this_machine import ThisMachine
from orchestrator.plan.plan import LaunchPlan, NodePlan

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory


class SlurmHost(Protocol):
    """The machine that submits, queries and cancels jobs. It has the workdir that the nodes share."""

    @property
    def name(self) -> str:
        """The machine's name in messages."""
        ...

    @property
    def jump(self) -> str | None:
        """The jump host for SSH connections to the nodes; None if they start on that machine."""
        ...

    def is_node(self, node: NodePlan) -> bool:
        """True if that machine is evidently the node itself."""
        ...

    def require_sbatch(self) -> None:
        """
        Check that jobs can be submitted there.

        Raises:
            LaunchError: the machine cannot be reached, or has no sbatch.
        """
        ...

    def endpoint(self) -> Endpoint:
        """An endpoint for its files; reconnects if the connection was lost."""
        ...

    def trace(self, plan: LaunchPlan, *, log_bytes: int = 0) -> RunTrace | None:
        """
        Return what the run's folder on that machine shows now, with the end of the batch log; None if there is no such folder.

        Raises:
            NodeError: the machine cannot be reached.
        """
        ...

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """
        Run a Slurm command, without the variables that filter its output; exit code 127 if it is not installed, 124 if it does not answer.

        Raises:
            NodeError: the machine cannot be reached.
        """
        ...

    def environment(self) -> Mapping[str, str]:
        """
        The environment of Slurm's commands on that machine.

        Raises:
            NodeError: the machine cannot be reached.
        """
        ...

    def submit(self, plan: LaunchPlan) -> str:
        """
        Submit the plan's batch script, which is on that machine, and return the job id. Repeated calls submit it once.

        Raises:
            LaunchError: sbatch returned no job id.
        """
        ...

    def withdraw(self, plan: LaunchPlan) -> str | None:
        """Prevent a submission that has not begun; return the job id if there is a job already."""
        ...

    def close(self) -> None:
        """Close the connections; jobs continue."""
        ...


def slurm_host(plan: LaunchPlan, terminal: Terminal | None = None) -> SlurmHost:
    """Return the machine that runs the plan's Slurm commands; a login prompts at `terminal`."""
    if plan.slurm["login"] is None:
        return ThisMachine(plan.head)
    login = login_node(plan.slurm["login"], plan.head, PlannedSsh.of(plan.ssh))
    return ThisMachine(plan.head) if login is None else LoginNode(login, transport_factory("ssh", plan.ssh, terminal))


def home_of_slurm(inventory: Inventory) -> str | None:
    """The user's home folder on the machine that runs Slurm's commands; None if that machine would have to be queried."""
    is_here = login_node(inventory.slurm.login, inventory.nodes[0], inventory.ssh) is None
    return str(Path.home()) if is_here else None
