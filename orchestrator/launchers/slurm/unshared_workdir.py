"""A workdir that the nodes of a Slurm cluster do not share: detected before the submission, written and read over SSH."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.endpoint.access import Terminal, transport_factory
from orchestrator.fanout import each
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from orchestrator.launchers.slurm.host import SlurmHost

ASKED = 3  # nodes; one is enough unless it is down
CONNECT_S = 5.0


class _Nobody(Terminal):
    """No terminal: a login asks no questions."""

    def is_there(self) -> bool:
        return False


def is_apart(plan: LaunchPlan) -> bool:
    """Whether the run's files lie on each of its nodes, as was found when it was submitted."""
    return not plan.slurm.get("shared", True)


def set_apart(plan: LaunchPlan) -> LaunchPlan:
    """The plan for such nodes. What one of them saves no other one sees, so no further attempt can go on from it."""
    warning = (
        f"workdir {plan.head.workdir} is not shared with the nodes: files and logs travel over SSH, checkpoints stay on the "
        "node of rank 0, and a job that fails or is preempted does not go on by itself"
    )
    slurm = {**plan.slurm, "shared": False, "requeue": "never", "max_retries": 0}
    return replace(plan, slurm=slurm, warnings=(*plan.warnings, warning))


def lack_files(plan: LaunchPlan, host: SlurmHost) -> bool:
    """
    Whether nodes have not got the run's files, which have just been written where Slurm's commands are.

    Where that is on a network's file system, or where no node lets itself be asked, only the job will show it.
    """
    others = [node for node in plan.nodes if not host.is_at(node)][:ASKED]
    if not others or not host.endpoint().is_local(plan.head.workdir):
        return False
    timeout_s = min(CONNECT_S, float(plan.ssh["connect_timeout_s"]))
    asked = replace(plan, nodes=tuple(others), ssh={**plan.ssh, "connect_timeout_s": timeout_s})
    nodes = nodes_behind(asked, host, _Nobody())
    try:
        found = each(others, lambda node: nodes.reach(node).find(node.workdir, plan.run_id), limit=ASKED)
    finally:
        nodes.close()
    return None in found


def nodes_behind(plan: LaunchPlan, host: SlurmHost, terminal: Terminal | None) -> DirectLauncher:
    """The plan's nodes over SSH."""
    return DirectLauncher(plan, transport_factory("ssh", ssh_to_nodes(plan, host), terminal))


def ssh_to_nodes(plan: LaunchPlan, host: SlurmHost) -> Mapping[str, Any]:
    """By way of the login node where there is one: from elsewhere compute nodes seldom can be reached."""
    jumps = [jump for jump in (plan.ssh["proxy_jump"], host.jump) if jump]
    return {**plan.ssh, "proxy_jump": ",".join(jumps) or None}
