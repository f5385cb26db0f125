"""The variables that follow from a node's CPUs and cards: threads per rank, and the cards that are visible."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.environment.variable import Origin, Variable
from orchestrator.findings import Finding, Severity
from orchestrator.node.facts import NodeFacts

MAX_THREADS = 8  # beside a card: more threads take CPUs from the data loaders and save nothing


def threads(facts: NodeFacts, ranks: int) -> Variable | None:
    """OMP_NUM_THREADS by the CPUs per rank; None for the default, 1, and for a single rank, which uses all CPUs."""
    cpus = facts["cpus"]
    usable = min(cpus["usable"], int(cpus["quota"]) if cpus["quota"] else cpus["usable"])
    per_rank = usable // ranks if ranks > 1 else 1
    count = min(per_rank, MAX_THREADS) if facts["cards"] else per_rank
    if count <= 1:
        return None
    reason = f"{usable} usable CPUs for {ranks} ranks"
    reason += f", at most {MAX_THREADS} beside a card" if count < per_rank else ""
    return Variable("OMP_NUM_THREADS", str(count), Origin.DISCOVERED, reason)


def visible_gcus(facts: NodeFacts, ranks: int) -> Variable | None:
    """TOPS_VISIBLE_DEVICES if one of the first cards is not healthy and there are enough others; else all cards are visible."""
    cards = sorted((card for card in facts["cards"] if card["kind"] == "gcu"), key=lambda card: card["index"])
    faulty = [card["index"] for card in cards if card["health"].get("Health", "").lower() == "false"]
    healthy = [card["index"] for card in cards if card["index"] not in faulty]
    if not faulty or len(healthy) < ranks or healthy[:ranks] == list(range(ranks)):
        return None
    reason = f"card {faulty[0]} reports Health: False, and {ranks} others are healthy"
    return Variable("TOPS_VISIBLE_DEVICES", ",".join(map(str, healthy[:ranks])), Origin.DISCOVERED, reason)


def mig_findings(node: str, facts: NodeFacts) -> Iterator[Finding]:
    """Warn about cards in MIG mode: a process sees one instance of them only."""
    cards = [str(card["index"]) for card in facts["cards"] if card["mig"]]
    if cards:
        yield Finding(
            Severity.WARN,
            "mig",
            f"MIG is enabled on card {', '.join(cards)}: a rank can use one instance of a card only",
            (node,),
            remedy="for training on whole cards, the administrator turns it off: nvidia-smi -i CARD -mig 0",
        )
