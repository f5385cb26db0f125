"""The cards of nodes whose inventory does not name them: counted on the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.endpoint.access import Terminal, between_prompts, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import NodeError, OrchError
from orchestrator.fanout import map_parallel, successes
from orchestrator.progress import OnProgress, Reporter

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node


def detect_cards(
    inventory: Inventory, names: str | None, terminal: Terminal, on_progress: OnProgress
) -> tuple[Inventory, dict[str, Endpoint]]:
    """
    Fill in accelerator and devices from the cards on the nodes in the host list `names` (None: on all).

    Returns:
        The inventory, and the connections by node, for the launch: a person may have answered prompts to log in.

    Raises:
        NodesError: some of them cannot be reached.
    """
    chosen = inventory.nodes if names is None else inventory.select(names)
    transport = transport_factory(inventory.transport, inventory.ssh, terminal)
    reporter = Reporter("connecting", [node.name for node in chosen], between_prompts(on_progress))

    def connect(node: Node) -> Endpoint:
        return Endpoint.connect(transport(node), node.python)

    results = map_parallel(chosen, reporter.around(connect), limit=inventory.ssh.fanout)
    connected = {
        node.name: result for node, result in zip(chosen, results, strict=True) if not isinstance(result, OrchError)
    }
    try:
        successes(results)
        for node in chosen:
            require_visible(node, connected[node.name])
        detected = {node.name: _with_cards(node, connected[node.name].facts.cards) for node in chosen}
    except BaseException:
        close_all(connected)
        raise
    return inventory.model_copy(
        update={"nodes": tuple(detected.get(node.name, node) for node in inventory.nodes)}
    ), connected


def require_visible(node: Node, endpoint: Endpoint) -> None:
    """
    Require that a container has cards if its node has some: without them the ranks would run on the CPUs.

    Raises:
        NodeError: it has none.
    """
    state = None if any(endpoint.facts.cards.values()) else endpoint.container_state()
    if state is not None and state.host_cards:
        cards = ", ".join(f"{number} {kind}" for kind, number in state.host_cards.items())
        option = state.card_option(next(iter(state.host_cards)))
        remedy = state.recreated_with(option) if option else "start it with the cards of the node"
        raise NodeError(
            node.name,
            f"the container has no cards, and its node has {cards}",
            hint=f"{remedy}; or write accelerator: cpu in the inventory",
        )


def close_all(connected: Mapping[str, Endpoint]) -> None:
    """Close connections that no launch uses."""
    map_parallel(list(connected.values()), Endpoint.close, limit=max(1, len(connected)))


def _with_cards(node: Node, cards: Mapping[str, int]) -> Node:
    kind = next((kind for kind, count in cards.items() if count), "cpu")
    devices = node.devices if node.devices > 1 else cards.get(kind, 1)  # a number in the inventory wins
    return node.model_copy(update={"accelerator": kind, "devices": devices})
