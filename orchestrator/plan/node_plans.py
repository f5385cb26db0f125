"""The part of a plan on each node: its ranks and its environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING

from orchestrator.inventory.redaction import is_secret
from orchestrator.plan.choose_nodes import SPARE
from orchestrator.plan.plan import NodePlan
from orchestrator.portable.environment.debugging import debugging_variables
from orchestrator.portable.environment.variable import Origin
from orchestrator.portable.names.hostlist import fold

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node


def assign_ranks(
    inventory: Inventory,
    nodes: Sequence[Node],
    ranks_each: Sequence[int],
    variables: Mapping[str, str | None] = MappingProxyType({}),
) -> tuple[NodePlan, ...]:
    """Give every node its global ranks, contiguous from 0 in node order, and its environment with these variables; None removes one."""
    secrets = frozenset(filter(is_secret, variables))
    firsts = accumulate(ranks_each, initial=0)
    return tuple(
        NodePlan(
            name=node.name,
            address=node.address,
            node_rank=node_rank,
            ranks=range(first, first + count),
            env={
                name: value for name, value in {**inventory.environment(node), **variables}.items() if value is not None
            },
            user=node.user,
            port=node.port,
            python=node.python,
            workdir=node.workdir,
            is_spare=SPARE in node.tags,
            secrets=inventory.secret_names(node) | secrets,
            accelerator=node.accelerator,
            network=node.network,
            container=None if node.container is None else node.container.model_dump(),
        )
        for node_rank, (node, count, first) in enumerate(zip(nodes, ranks_each, firsts, strict=False))
    )


def with_debugging(planned: Sequence[NodePlan], nodes: Sequence[Node]) -> tuple[tuple[NodePlan, ...], Sequence[str]]:
    """The nodes with the variables of --debug, and a warning about each that the inventory sets to another value."""
    changed, kept = [], dict[str, list[str]]()
    for node_plan, node in zip(planned, nodes, strict=True):
        variables = debugging_variables(node.accelerator, node_plan.env)
        added = {
            variable.name: variable.value for variable in variables if variable.origin is Origin.FLAG and variable.value
        }
        changed.append(replace(node_plan, env={**node_plan.env, **added}))
        for variable in variables:
            if variable.name not in added:
                kept.setdefault(f"{variable.name}={variable.value}", []).append(node.name)
    return tuple(changed), [
        f"--debug keeps {setting} of the inventory on {fold(names)}" for setting, names in kept.items()
    ]
