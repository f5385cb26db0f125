"""The tools of the vendors on the node itself, which describe the cards of a container without them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.endpoint.container import output_on_node
from orchestrator.errors import NodeError
from orchestrator.node.probe.cards import COUNT, NOT_IN_CONTAINER, TOOLS, bytes_of, health_of
from orchestrator.node.vendor import efsmi, nvidia_smi
from orchestrator.node.vendor.tool import FOLDERS

if TYPE_CHECKING:
    from orchestrator.node.facts import Card, NodeFacts
    from orchestrator.node.vendor.readings import CardReading
    from orchestrator.transports.container import ContainerTransport

ON_NODE = "on the node itself"
_RUN = f'PATH=$PATH:{":".join(FOLDERS)}; export PATH; LC_ALL=C exec "$@"'
_COMMANDS = {
    "cuda": [(nvidia_smi.query_gpu(), nvidia_smi.parse_gpus)],
    "gcu": [(efsmi.query(), efsmi.parse_query), (efsmi.table(), efsmi.parse_table)],
}


def with_tools_of_node(facts: NodeFacts, transport: ContainerTransport) -> NodeFacts:
    """
    The facts of a container in which each card has the values that the tool of the node prints, if the container has no such tool.

    Only if the tool prints as many cards as the container has: else it is not known which ones they are.
    """
    for kind, (tool, fact, _, _) in TOOLS.items():
        absent = (tool, NOT_IN_CONTAINER.format(tool))
        if absent not in ((entry["name"], entry["error"]) for entry in facts["tools"]):
            continue
        readings = _readings(kind, transport)
        inside = [card for card in facts["cards"] if card["kind"] == kind]
        missing = dict(facts["missing"])
        key = fact if fact in missing else f"{COUNT}.{kind}"
        if not readings:
            missing[key] = f"{missing.get(key, NOT_IN_CONTAINER.format(tool))}, and it prints no cards {ON_NODE} either"
        elif len(readings) != len(inside):
            missing[key] = f"{missing.get(key, '')}; {tool} {ON_NODE} has {len(readings)} cards"
        else:
            missing.pop(fact, None)
            described = iter([_described(card, reading) for card, reading in zip(inside, readings, strict=True)])
            cards = [next(described) if card["kind"] == kind else card for card in facts["cards"]]
            tools = [entry for entry in facts["tools"] if entry["name"] != tool]
            of_node = {"name": f"{tool} {ON_NODE}", "seconds": 0.0, "error": None}
            facts = {**facts, "cards": cards, "tools": [*tools, of_node]}  # type: ignore[list-item]  # mypy widens the dict
        facts = {**facts, "missing": missing}
    return facts


def _readings(kind: str, transport: ContainerTransport) -> list[CardReading]:
    """The cards that the tool of the node prints, by index; none if it fails."""
    for argv, parse in _COMMANDS[kind]:
        with suppress(NodeError):  # it does not answer
            status, printed, _ = output_on_node(transport, ["sh", "-c", _RUN, "sh", *argv])
            if status == 0 and (cards := parse(printed)["cards"]):
                return sorted(cards, key=lambda card: card["index"])
    return []


def _described(card: Card, reading: CardReading) -> Card:
    return {
        **card,
        "uuid": card["uuid"] or reading.get("uuid") or reading.get("serial"),
        "name": card["name"] or reading.get("name"),
        "memory_total": bytes_of(reading.get("memory_total_mib")),
        "memory_used": bytes_of(reading.get("memory_used_mib")),
        "utilization": reading.get("utilization_percent"),
        "health": health_of(reading),
    }
