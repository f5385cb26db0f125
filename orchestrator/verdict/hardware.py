"""Findings about the hardware that the ranks of a running attempt use. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.node.number_text import format_numbers
from orchestrator.portable.findings import Finding, Severity, merged

if TYPE_CHECKING:
    from orchestrator.node.run.agent_files import CardsBody, NetworkBody

DEVICE_OF = {"nvidia-smi": 'torch.device("cuda", local_rank)', "efsmi": "gcu:LOCAL_RANK, on a T20 xla:LOCAL_RANK"}


def hardware_findings(nodes: Sequence[NodeObservation]) -> list[Finding]:
    """The findings about nodes whose ranks run; equal ones of several nodes are one."""
    findings = []
    for node in nodes:
        if node.finished is None and node.cards is not None and node.cards["idle"]:
            findings.append(_idle_cards(node.node, node.cards))
        if node.finished is None and node.network is not None and node.network["taken"] == "Socket":
            findings.append(_sockets(node.node, node.network))
    return merged(findings)


def _idle_cards(node: str, cards: CardsBody) -> Finding:
    device = DEVICE_OF.get(cards["tool"], "the device of LOCAL_RANK")
    fault = "no two ranks should share a card" if cards["used"] else "the ranks train on the CPU"
    remedy = f"{fault}: move model and batches to {device}"
    text = f"{cards['expected'] - cards['used']} of {cards['expected']} cards idle"
    idle = format_numbers(cards["idle"])
    evidence = f"{cards['tool']} shows 0 % on {idle} in several samples in a row, while the ranks run"
    return Finding(Severity.WARN, "idle-cards", text, (node,), evidence, remedy)


def _sockets(node: str, network: NetworkBody) -> Finding:
    remedy = (
        "the ranks exchange gradients at a fraction of the speed. Launched with --debug, NCCL prints why it left out the RDMA devices; "
        "with env: {NCCL_NET: IB} such a run fails at its start"
    )
    text = f"expected {network['expected']}, got Socket"
    return Finding(Severity.WARN, "network-taken", text, (node,), network["evidence"], remedy)
