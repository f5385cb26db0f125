"""The facts that come from inside the container of a node, and those of the node itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.endpoint.access import container_of
from orchestrator.endpoint.host_tools import ON_NODE
from orchestrator.portable.names.hostlist import fold_by_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from orchestrator.endpoint.access import Target
    from orchestrator.node.facts import NodeFacts

INSIDE = "software, disks, limits, variables and the cards that it has"
OUTSIDE = "CPUs, memory, RDMA adapters, driver and kernel"


def containers(nodes: Iterable[Target]) -> dict[str, str]:
    """The container of each node that has one, in words."""
    return {node.name: str(container) for node in nodes if (container := container_of(node)) is not None}


def side_lines(nodes: Iterable[Target], facts: Mapping[str, NodeFacts]) -> list[str]:
    """One line for each container and its nodes: which facts are from inside; none for nodes without a container."""
    texts = {}
    for name, container in containers(nodes).items():
        if name in facts:
            tools = (tool["name"] for tool in facts[name]["tools"] if tool["name"].endswith(ON_NODE))
            outside = ", ".join([OUTSIDE, *(f"the values of {tool.partition(' ')[0]}" for tool in tools)])
            texts[name] = f"inside {container}: {INSIDE}; {ON_NODE}: {outside}"
    return [f"{names}: {text}" for text, names in fold_by_value(texts.items()).items()]
