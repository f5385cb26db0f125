"""Findings about the hardware that the ranks of a running attempt use. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.endpoint.replies import NodeObservation
from orchestrator.findings import Finding, Severity
from orchestrator.node.number_list import format_numbers

if TYPE_CHECKING:
    from orchestrator.node.messages import CardsBody, NetworkBody

DEVICE_OF = {"nvidia-smi": 'torch.device("cuda", local_rank)', "efsmi": "gcu:LOCAL_RANK, on a T20 xla:LOCAL_RANK"}


def hardware_findings(nodes: Sequence[NodeObservation]) -> list[Finding]:
    """The findings about nodes whose ranks run; equal ones of several nodes are one."""
    nodes_of: dict[Finding, list[str]] = {}
    for node in nodes:
        for finding in _findings(node):
            nodes_of.setdefault(finding, []).append(node.node)
    return [replace(finding, nodes=tuple(names)) for finding, names in nodes_of.items()]


def _findings(node: NodeObservation) -> Iterator[Finding]:
    if node.finished is not None:
        return
    if node.cards is not None and node.cards["idle"]:
        yield _idle_cards(node.cards)
    if node.network is not None and node.network["taken"] == "Socket":
        yield _sockets(node.network)


def _idle_cards(cards: CardsBody) -> Finding:
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


def _sockets(network: NetworkBody) -> Finding:
    remedy = (
        "the ranks exchange gradients at a fraction of the speed. Launched with --debug, NCCL prints why it left out the RDMA devices; "
        "with env: {NCCL_NET: IB} such a run fails at its start"
    )
    text = f"expected {network['expected']}, got Socket"
    return Finding(Severity.WARN, "network-taken", text, evidence=network["evidence"], remedy=remedy)
