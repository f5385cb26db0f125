"""The network variables of a launch, discovered from the facts of the nodes and added to the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.checks.cluster import nodes_to_resolve
from orchestrator.endpoint.access import Terminal, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import OrchError, UsageError
from orchestrator.fanout import map_parallel
from orchestrator.node.facts import read_facts

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory
    from orchestrator.node.facts import NodeFacts
    from orchestrator.plan.plan import LaunchPlan, NodePlan


def query(
    inventory: Inventory, plan: LaunchPlan, connected: Mapping[str, Endpoint]
) -> tuple[dict[str, NodeFacts], list[str]]:
    """The facts of the plan's nodes that answer, and a warning about each other one; closes the connections in `connected`."""
    transport = transport_factory(inventory.transport, inventory.ssh, Terminal())

    def probe(node: NodePlan) -> NodeFacts:
        names = [named.address for named in nodes_to_resolve(plan.nodes, node)]
        existing = connected.get(node.name)
        with existing or Endpoint.connect(transport(node), node.python) as endpoint:
            return endpoint.probe(names, {}, None)

    results = map_parallel(plan.nodes, probe, limit=inventory.ssh.fanout)
    facts: dict[str, NodeFacts] = {}
    warnings: list[str] = []
    for node, result in zip(plan.nodes, results, strict=True):
        if isinstance(result, OrchError):
            warnings.append(f"{result}; the network is left to NCCL and gloo")
        else:
            facts[node.name] = result
    return facts, warnings


def saved_facts(file: Path) -> tuple[dict[str, NodeFacts], list[str]]:
    """Read the facts by node from the output of `orch env --explain --json`; UsageError if the file does not hold them."""
    hint = "write the file with: orch env --explain --json >FILE"
    try:
        value = json.loads(file.read_text("utf-8"))
        return {name: read_facts(facts) for name, facts in value["facts"].items()}, []
    except OSError as error:
        raise UsageError(f"--facts {file}: {error.strerror}", hint=hint) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--facts {file} holds no facts of nodes: {error}", hint=hint) from error
