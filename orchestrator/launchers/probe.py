"""Looks at nodes whose inventory leaves open what they are, before the plan is made."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.endpoint.client import Endpoint
from orchestrator.fanout import each, successes
from orchestrator.inventory.model import Inventory, Node
from orchestrator.transports import way_to


def probed(inventory: Inventory, names: str | None) -> Inventory:
    """
    Fill in accelerator and devices of the nodes in the host list `names` (None: of all) from the cards they have.

    Raises:
        NodesError: some of them cannot be reached.
    """
    chosen = inventory.nodes if names is None else inventory.select(names)
    found = dict(zip((node.name for node in chosen), _looked_at(inventory, chosen), strict=True))
    return inventory.model_copy(update={"nodes": tuple(found.get(node.name, node) for node in inventory.nodes)})


def _looked_at(inventory: Inventory, nodes: Sequence[Node]) -> list[Node]:
    transport = way_to(inventory.transport, inventory.ssh)

    def look(node: Node) -> Node:
        with Endpoint.connect(transport(node), node.python) as endpoint:
            cards = endpoint.facts.cards
        kind = next((kind for kind, count in cards.items() if count), "cpu")
        devices = node.devices if node.devices > 1 else cards.get(kind, 1)  # what somebody wrote down stands
        return node.model_copy(update={"accelerator": kind, "devices": devices})

    return successes(each(nodes, look, limit=inventory.ssh.fanout))
