"""`orch env`: what every rank of each node gets from orch, by the agent's own rules. No node is asked, nothing starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from orchestrator.commands.inventory import load_inventory
from orchestrator.console import print_json, print_text, say
from orchestrator.errors import UsageError
from orchestrator.node.agent.environment import defaults, node_environment, own_environments
from orchestrator.node.job import Job
from orchestrator.plan import files
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan, NodePlan, redacted
from orchestrator.run import Program, Request

_LATER = "<known-at-the-launch>"  # one word, as in a rendezvous record


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """One node's part; secrets are redacted."""

    node: str
    env: Mapping[str, str]
    """Out of the inventory."""
    orch: Mapping[str, str]
    """Set by orch, the same for all ranks of the node."""
    ranks: tuple[Mapping[str, str], ...]
    """Set by orch for each rank, in local order."""
    unless_set: Mapping[str, str]
    """Set by orch where the node does not have it already."""
    at_launch: tuple[str, ...]
    """Set by orch to what only the launch shows."""


def env(inventory: str | None, nodes: str | None, node: str | None, *, as_json: bool) -> int:
    """Print what a launch on `nodes` gives to the ranks, on the nodes of the host list `node` only."""
    found = load_inventory(inventory, nodes)
    request = Request("ssh", Program("executable", ("true",)), nodes=nodes)
    plan = redacted(make_plan(found, request, run_id=_LATER, bundle=_LATER))
    for warning in plan.warnings:
        say(f"warning: {warning}")
    wanted = {one.name for one in found.select(node)} if node is not None else {one.name for one in plan.nodes}
    if absent := sorted(wanted - {one.name for one in plan.nodes}):
        raise UsageError(f"{absent[0]} takes no part in this launch", hint="name it with --nodes too")
    environments = [_of_node(plan, one) for one in plan.nodes if one.name in wanted]
    if as_json:
        print_json([asdict(one) for one in environments])
    else:
        print_text("\n".join(map(_text, environments)))
    return 0


def _of_node(plan: LaunchPlan, node: NodePlan) -> NodeEnvironment:
    fields = {name: value for name, value in files.job(plan).items() if name != "version"}
    job = Job(node=node.name, node_rank=node.node_rank, **fields)
    orch = _decoded(node_environment(job, f"{_LATER} {_LATER} -"))
    own = [_decoded(one) for one in own_environments(job, _LATER)]
    unless_set = _decoded(defaults(job, _LATER, {os.fsencode(name): b"" for name in node.env}))
    later = [name for name, value in {**unless_set, **orch, **own[0]}.items() if _LATER in value]
    return NodeEnvironment(
        node=node.name,
        env=dict(sorted(node.env.items())),
        orch={name: value for name, value in sorted(orch.items()) if name not in later},
        ranks=tuple({name: value for name, value in one.items() if name not in later} for one in own),
        unless_set={name: value for name, value in sorted(unless_set.items()) if name not in later},
        at_launch=tuple(sorted(later)),
    )


def _decoded(environment: Mapping[bytes, bytes]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}


def _text(shown: NodeEnvironment) -> str:
    """The same for a person; what does not print is escaped as in JSON."""
    lines = [f"{shown.node}:"]
    for title, part in (("from the inventory", shown.env), ("from orch", shown.orch)):
        lines += [f"  {title}", *(f"    {_pair(name, value)}" for name, value in part.items())]
    lines += ["  from orch, for each rank"]
    lines += [f"    {' '.join(_pair(*item) for item in rank.items())}" for rank in shown.ranks]
    lines += ["  from orch, unless the node has it", *(f"    {_pair(*item)}" for item in shown.unless_set.items())]
    lines += ["  from orch, known at the launch", f"    {' '.join(shown.at_launch)}", ""]
    return "\n".join(lines)


def _pair(name: str, value: str) -> str:
    return f"{name}={value if value.isprintable() else json.dumps(value)}"
