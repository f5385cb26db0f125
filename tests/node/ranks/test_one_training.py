"""Ranks that train separately are proved by the groups in their progress; whatever may be intended, or is unknown, is no proof."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.node.ranks.one_training import joining_remedy, separate_trainings

Groups = dict[str, dict[int, Any]]


def _proof(groups: Groups, ranks: int, *, is_per_node: bool = True, step: int = 5, least_steps: int = 1) -> str:
    reports = {
        node: {rank: {"step": step, "time": 100.0, "group": group} for rank, group in of_node.items()}
        for node, of_node in groups.items()
    }
    return separate_trainings(reports, ranks, is_per_node=is_per_node, least_steps=least_steps)


@pytest.mark.parametrize(
    ("groups", "ranks", "is_per_node", "proof"),
    [
        ({"n0": {0: [0, 1]}, "n1": {0: [0, 1]}}, 2, True, "2 trainings, not one: each of 2 ranks takes optimizer steps in no process group"),
        ({"n0": {0: [0, 1], 1: [0, 1]}}, 2, False, "2 trainings, not one: each of 2 ranks takes"),
        ({"n0": {0: [0, 2], 1: [1, 2]}, "n1": {0: [0, 2], 1: [1, 2]}}, 4, True, "2 trainings, not one: n0 and n1 each have a rank 0 of 2"),
        ({f"n{k}": {0: [0, 2], 1: [1, 2]} for k in range(4)}, 8, True, "4 trainings, not one: 4 nodes each have a rank 0 of 2"),
        ({"n0": {0: [0, 8]}, "n1": {0: [0, 8]}}, 16, True, "2 trainings, not one: n0 and n1 each have a rank 0 of 8"),  # torch.multiprocessing
    ],
)  # fmt: skip
def test_separate_trainings_are_proved(groups: Groups, ranks: int, proof: str, *, is_per_node: bool) -> None:
    assert _proof(groups, ranks, is_per_node=is_per_node).startswith(proof)


@pytest.mark.parametrize(
    ("groups", "ranks", "is_per_node"),
    [
        ({"n0": {0: [0, 2]}, "n1": {1: [1, 2]}}, 2, True),  # one world
        ({"n0": {0: [0, 2]}, "n1": {1: [1, 2]}}, 4, True),  # on fewer cards than there are
        ({"n0": {0: [0, 1]}, "n1": {}}, 2, True),  # one node trains, the other serves it
        ({"n0": {0: [0, 1]}}, 8, True),  # one process with many cards
        ({"n0": {0: [0, 1], 1: None}}, 2, False),  # a rank takes no steps, or does not report its group
        ({"n0": {0: [0, 1]}, "n1": {1: None}}, 2, False),
        ({"n0": {0: None}, "n1": {0: None}}, 2, True),  # ORCH_SEPARATE, or joined by another library
        ({"n0": {0: [0, 2], 1: [1, 2]}, "n1": {0: [0, 1]}}, 3, True),
        ({"n0": {0: "x", 1: [1]}, "n1": {0: {}, 1: ["a", "b"]}}, 4, True),
    ],
)  # fmt: skip
def test_what_may_be_right_is_no_proof(groups: Groups, ranks: int, *, is_per_node: bool) -> None:
    assert not _proof(groups, ranks, is_per_node=is_per_node)


def test_running_ranks_may_join_after_their_first_steps() -> None:
    groups: Groups = {"n0": {0: [0, 1]}, "n1": {0: [0, 1]}}
    assert not _proof(groups, 2, step=2, least_steps=3)
    assert _proof(groups, 2, step=3, least_steps=3)


def test_files_of_ranks_that_torchrun_has_restarted_are_left_out() -> None:
    def report(rank: int, time_s: float) -> dict[str, Any]:
        return {"step": 9, "time": time_s, "group": [rank, 4]}

    n0 = {0: report(0, 50.0), 1: report(1, 50.0), 2: report(2, 100.0), 3: report(3, 100.0)}
    n1 = {0: report(0, 100.0), 1: report(1, 100.0), 2: report(2, 50.0), 3: report(3, 50.0)}
    assert not separate_trainings({"n0": n0, "n1": n1}, 4, is_per_node=True)


def test_remedy_is_the_line_to_type_if_it_is_known() -> None:
    trl = joining_remedy("ssh-launch", ["trl", "sft"], is_per_node=True)
    assert trl.startswith(
        "one training: `orch ssh-launch … --per-node -- bash -c 'trl sft --multi_gpu --num_machines $NNODES"
    )
    assert 'set ORCH_SEPARATE: "1" in env' in trl
    assert joining_remedy("submit", ["bash", "x.sh"], is_per_node=True).startswith("pass NNODES, NODE_RANK")
    assert joining_remedy("submit", ["x.py"], is_per_node=False).startswith("join the ranks with torch.distributed")
