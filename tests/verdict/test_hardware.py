"""Findings about the hardware that the ranks use, from the reports of their nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.endpoint.observation import Finished, NodeObservation
from orchestrator.verdict.hardware import hardware_findings


def _node(name: str, *, finished: Finished | None = None, **cards: Any) -> NodeObservation:  # values of cards.json
    body: Any = {
        "time": 1.0,
        "tool": "nvidia-smi",
        "error": "",
        "cards": [],
        "idle": [],
        "expected": 8,
        "used": 8,
        **cards,
    }
    return NodeObservation(name, None, alive=True, same_boot=True, finished=finished, first_failure=None, cards=body)


def test_equal_findings_of_several_nodes_are_one() -> None:
    idle = list(range(1, 8))
    nodes = [_node("n0", idle=idle, used=1), _node("n1", idle=idle, used=1), _node("n2")]
    [finding] = hardware_findings(nodes)
    assert str(finding) == (
        "n[0-1]: 7 of 8 cards idle (nvidia-smi shows 0 % on 1-7 in several samples in a row, while the ranks run); "
        'no two ranks should share a card: move model and batches to torch.device("cuda", local_rank)'
    )
    assert (finding.check, finding.nodes, finding.to_json()["severity"]) == ("idle-cards", ("n0", "n1"), "WARN")


def test_ranks_that_use_no_card_train_on_the_cpu() -> None:
    [finding] = hardware_findings([_node("n0", tool="efsmi", idle=list(range(8)), used=0)])
    assert finding.text == "8 of 8 cards idle"
    assert finding.remedy.startswith("the ranks train on the CPU: move model and batches to gcu:LOCAL_RANK")


def test_node_that_has_ended_has_no_finding() -> None:
    finished = Finished("DONE", 2.0, None)
    assert hardware_findings([_node("n0", finished=finished, idle=[1], used=1)]) == []


def test_sockets_instead_of_rdma_are_a_finding() -> None:
    report: Any = {
        "time": 1.0,
        "expected": "IB",
        "taken": "Socket",
        "evidence": "rank 0 printed `NCCL INFO Using network Socket`",
    }
    [finding] = hardware_findings([replace(_node("n0"), network=report)])
    text = "n0: expected IB, got Socket (rank 0 printed `NCCL INFO Using network Socket`); "
    assert str(finding).startswith(text)
    assert finding.check == "network-taken"
    report["taken"] = "IB"
    assert hardware_findings([replace(_node("n0"), network=report)]) == []
