"""The environment that every rank gets from orch, by the code of the agent. No node is queried, nothing starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.actions.inventory import load_inventory
from orchestrator.errors import UsageError
from orchestrator.node.agent.environment import defaults, node_environment, rank_variables
from orchestrator.node.job import Job
from orchestrator.plan import files
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan, NodePlan, redacted
from orchestrator.run import Program, Request

_UNKNOWN = "<known-at-the-launch>"  # without spaces, as the parts of a rendezvous record


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """One node's environment; secrets are redacted."""

    node: str
    env: Mapping[str, str]
    """From the inventory."""
    orch: Mapping[str, str]
    """Set by orch, the same for all ranks of the node."""
    ranks: tuple[Mapping[str, str], ...]
    """Set by orch for each rank, in local order."""
    unless_set: Mapping[str, str]
    """Set by orch unless the node's own environment sets it."""
    at_launch: tuple[str, ...]
    """Set by orch to a value that is known only at the launch."""
    setup: tuple[str, ...] = ()
    """Lines of shell before the ranks, which inherit what the lines export."""


def environments(
    inventory: str | None, nodes: str | None, selected: str | None
) -> tuple[list[NodeEnvironment], tuple[str, ...]]:
    """
    Return the environments of a launch on `nodes`, and the plan's warnings.

    Args:
        selected: a host list; None selects all nodes of the launch.

    Raises:
        UsageError: a selected node takes no part in the launch.
    """
    loaded = load_inventory(inventory, nodes)
    request = Request("ssh", Program("executable", ("true",)), nodes=nodes)
    plan = redacted(make_plan(loaded, request, run_id=_UNKNOWN, bundle=_UNKNOWN))
    planned = {node.name for node in plan.nodes}
    shown = {node.name for node in loaded.select(selected)} if selected is not None else planned
    if absent := sorted(shown - planned):
        raise UsageError(f"{absent[0]} takes no part in this launch", hint="name it with --nodes too")
    return [_of_node(plan, node) for node in plan.nodes if node.name in shown], plan.warnings


def _of_node(plan: LaunchPlan, node: NodePlan) -> NodeEnvironment:
    fields = {name: value for name, value in files.job_json(plan).items() if name != "version"}
    job = Job(node=node.name, node_rank=node.node_rank, **fields)
    orch = _decoded(node_environment(job, f"{_UNKNOWN} {_UNKNOWN} -"))
    ranks = [_decoded(environment) for environment in rank_variables(job, _UNKNOWN)]
    unless_set = _decoded(defaults(job, _UNKNOWN, {os.fsencode(name): b"" for name in node.env}))
    unknown = [name for name, value in {**unless_set, **orch, **ranks[0]}.items() if _UNKNOWN in value]
    unknown += ["PATH"] if node.python_folder and "PATH" not in node.env else []  # it begins with that folder
    return NodeEnvironment(
        node=node.name,
        env=dict(sorted(node.env.items())),
        orch={name: value for name, value in sorted(orch.items()) if name not in unknown},
        ranks=tuple({name: value for name, value in rank.items() if name not in unknown} for rank in ranks),
        unless_set={name: value for name, value in sorted(unless_set.items()) if name not in unknown},
        at_launch=tuple(sorted(unknown)),
        setup=plan.setup,
    )


def _decoded(environment: Mapping[bytes, bytes]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
