"""The cards of nodes whose inventory does not name them: counted on the nodes."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.endpoint.access import transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.fanout import each, successes
from orchestrator.inventory.model import Inventory, Node


def with_detected_cards(inventory: Inventory, names: str | None) -> Inventory:
    """
    Fill in accelerator and devices from the cards on the nodes in the host list `names` (None: on all).

    Raises:
        NodesError: some of them cannot be reached.
    """
    chosen = inventory.nodes if names is None else inventory.select(names)
    detected = dict(zip((node.name for node in chosen), _detect_cards(inventory, chosen), strict=True))
    return inventory.model_copy(update={"nodes": tuple(detected.get(node.name, node) for node in inventory.nodes)})


def _detect_cards(inventory: Inventory, nodes: Sequence[Node]) -> list[Node]:
    transport = transport_factory(inventory.transport, inventory.ssh)

    def detect(node: Node) -> Node:
        with Endpoint.connect(transport(node), node.python) as endpoint:
            cards = endpoint.facts.cards
        kind = next((kind for kind, count in cards.items() if count), "cpu")
        devices = node.devices if node.devices > 1 else cards.get(kind, 1)  # a number in the inventory wins
        return node.model_copy(update={"accelerator": kind, "devices": devices})

    return successes(each(nodes, detect, limit=inventory.ssh.fanout))
