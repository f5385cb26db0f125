"""A workdir that the nodes of a Slurm cluster do not share: detected before submission, written and read over SSH."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.endpoint.access import Terminal, transport_factory
from orchestrator.fanout import map_parallel
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from orchestrator.launchers.job import JobStatus
    from orchestrator.launchers.slurm.host import SlurmHost

MOST_QUERIED = 3  # nodes; one is enough unless it is down
CONNECT_S = 5.0
# Reasons of jobs whose script has run, or whose log Slurm could not create: exit code 0:53, named JobLaunchFailure by Slurm 22.05.
_REASONS = ("NonZeroExitCode", "JobLaunchFailure", "RaisedSignal:53")


def is_unshared(plan: LaunchPlan) -> bool:
    """True if each node has its own copy of the run's files, as found when the run was submitted."""
    return not plan.slurm.get("shared", True)


def nodes_lack_files(plan: LaunchPlan, host: SlurmHost) -> bool:
    """
    Return whether a node lacks the run's files, which have just been written on the machine that has Slurm's commands.

    False if they are on a network file system, or if no node accepts a login: then only the job will show it.
    """
    queried = [node for node in plan.nodes if not host.is_node(node)][:MOST_QUERIED]
    if not queried or not host.endpoint().is_local(plan.head.workdir):
        return False
    timeout_s = min(CONNECT_S, float(plan.ssh["connect_timeout_s"]))
    subplan = replace(plan, nodes=tuple(queried), ssh={**plan.ssh, "connect_timeout_s": timeout_s})
    launcher = nodes_over_ssh(subplan, host, Terminal(may_prompt=False))
    try:
        traces = map_parallel(
            queried, lambda node: launcher.reach(node).find(node.workdir, plan.run_id), limit=MOST_QUERIED
        )
    finally:
        launcher.close()
    return None in traces


def missing_log(status: JobStatus, folder: str) -> str:
    """The sentence on a job's log that is not in the folder; it names workdir only if Slurm wrote the log elsewhere, or could not."""
    text = f"the job's log is missing from {folder}"
    if status.state != "RUNNING" and not status.reason.startswith(_REASONS):
        return text
    return f"{text}: workdir must be a folder that it shares with the nodes, or the nodes must accept a login by orch"


def nodes_over_ssh(plan: LaunchPlan, host: SlurmHost, terminal: Terminal | None) -> DirectLauncher:
    """A launcher that reaches the plan's nodes over SSH, for their files."""
    return DirectLauncher(plan, transport_factory("ssh", ssh_to_nodes(plan, host), terminal))


def ssh_to_nodes(plan: LaunchPlan, host: SlurmHost) -> Mapping[str, Any]:
    """The SSH settings for the nodes, with the login node as jump host: compute nodes are seldom reachable otherwise."""
    jumps = [jump for jump in (plan.ssh["proxy_jump"], host.jump) if jump]
    return {**plan.ssh, "proxy_jump": ",".join(jumps) or None}
