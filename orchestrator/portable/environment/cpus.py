"""The CPUs that the agent will give to the ranks of a node, from the facts of the node by the agent's own rules."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.node.agent.binding import Card, Unbound, cards_of_ranks, refuse_useless, visible_cards
from orchestrator.node.cards import VISIBLE
from orchestrator.node.facts import NodeFacts
from orchestrator.node.number_text import format_numbers, parse_numbers


def cpus_of_ranks(facts: NodeFacts, accelerator: str, ranks: int, env: Mapping[str, str], *, bind: str) -> str:
    """The CPUs by local rank, such as `ranks 0-3 on CPUs 0-47; ranks 4-7 on CPUs 48-95`, or the reason for none."""
    try:
        if bind == "none":
            raise Unbound("bind: none in the inventory")
        cpus = _near_cpus(facts, accelerator, ranks, env)
    except Unbound as reason:
        return f"none: {reason}"
    ranks_of: dict[str, set[int]] = {}
    for rank, near in enumerate(cpus):
        ranks_of.setdefault(format_numbers(near), set()).add(rank)
    return "; ".join(f"ranks {format_numbers(numbers)} on CPUs {text}" for text, numbers in ranks_of.items())


def _near_cpus(facts: NodeFacts, accelerator: str, ranks: int, env: Mapping[str, str]) -> list[set[int]]:
    numa_cpus = {entry["node"]: parse_numbers(entry["cpus"]) or set() for entry in facts["cpus"]["numa"]}
    affinity = {cpu for cpus in numa_cpus.values() for cpu in cpus}
    if len(affinity) != facts["cpus"]["usable"]:
        raise Unbound(f"{facts['cpus']['usable']} of {len(affinity)} CPUs are usable; the agent decides on the node")
    kind = accelerator if accelerator != "auto" else next((card["kind"] for card in facts["cards"]), "")
    if kind not in VISIBLE:
        raise Unbound("the ranks use no cards")
    of_kind = [card for card in facts["cards"] if card["kind"] == kind]
    near = {card["pci"]: numa_cpus.get(card["numa"], set()) for card in of_kind if card["numa"] is not None}
    cards = [Card(card["pci"] or "", card["uuid"] or "", card["name"] or "") for card in of_kind]
    if unknown := [card.address for card in cards if card.address not in near]:
        raise Unbound(f"the NUMA node of {unknown[0] or 'a card'} is unknown")
    mine = visible_cards(cards, env.get(VISIBLE[kind]), env)
    cpus = [near[card.address] for card in cards_of_ranks(mine, ranks)]
    refuse_useless(cpus, affinity, len(cards))
    return cpus
