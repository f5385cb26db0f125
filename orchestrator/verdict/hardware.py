"""Findings about the hardware that the ranks of a running attempt use. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.endpoint.replies import NodeObservation
from orchestrator.findings import Finding, Severity
from orchestrator.names.hostlist import fold
from orchestrator.node.number_list import format_numbers

DEVICE_OF = {"nvidia-smi": 'torch.device("cuda", local_rank)', "efsmi": "gcu:LOCAL_RANK, on a T20 xla:LOCAL_RANK"}


def hardware_findings(nodes: Sequence[NodeObservation]) -> list[Finding]:
    """The findings about nodes whose ranks run; equal ones of several nodes are one."""
    nodes_of: dict[Finding, list[str]] = {}
    for node in nodes:
        if node.finished is None and node.cards is not None and node.cards["idle"]:
            nodes_of.setdefault(_idle_cards(node), []).append(node.node)
    return [replace(finding, nodes=tuple(names)) for finding, names in nodes_of.items()]


def finding_text(finding: Finding) -> str:
    """A finding as one warning."""
    return f"{finding.text} on {fold(finding.nodes)}: {finding.evidence}; {finding.remedy}"


def _idle_cards(node: NodeObservation) -> Finding:
    cards = node.cards
    assert cards is not None, "the node has sampled its cards"
    is_all = cards["used"] == 0
    device = DEVICE_OF.get(cards["tool"], "the device of LOCAL_RANK")
    remedy = (
        f"the ranks train on the CPU: move model and batches to {device}"
        if is_all
        else f"no two ranks should share a card: move model and batches to {device}"
    )
    return Finding(
        Severity.WARN,
        "idle-cards",
        f"{cards['expected'] - cards['used']} of {cards['expected']} cards idle",
        evidence=f"{cards['tool']} shows 0 % on {format_numbers(cards['idle'])} in several samples in a row, while the ranks run",
        remedy=remedy,
    )
