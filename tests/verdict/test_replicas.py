"""Fingerprints of replicas: the vote on which rank differs, and reports that cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.portable.findings import Finding
from orchestrator.verdict.replicas import differing_replicas


def _node(name: str, progress: Mapping[int, Mapping[str, Any]]) -> NodeObservation:
    return NodeObservation(name, None, alive=True, same_boot=True, finished=None, first_failure=None, progress=progress)


def _reports(*ranks: Mapping[str, str], name: str = "parameters") -> dict[int, dict[str, Any]]:
    """The progress of each rank, from its fingerprints by step."""
    return {
        rank: {
            "step": 9,
            "replicas": {"count": len(ranks), "steps": {step: {name: value} for step, value in of_rank.items()}},
        }
        for rank, of_rank in enumerate(ranks)
    }


def _found(*ranks: Mapping[str, str], name: str = "parameters") -> Finding | None:
    progress = _reports(*ranks, name=name)
    return differing_replicas([_node(f"n{rank}", {rank: report}) for rank, report in progress.items()])


A, B, C = {"50": "a"}, {"50": "b"}, {"50": "c"}


@pytest.mark.parametrize(
    ("ranks", "text", "nodes"),
    [
        ((A, B, A), "rank 1 differs from the 2 others in the parameters after step 50", ("n1",)),
        ((B, A, A, C, A), "ranks 0,3 differ from the 3 others in the parameters after step 50", ("n0", "n3")),
        (
            (A, B),
            "the replicas differ in the parameters after step 50: rank 0 and rank 1; no majority shows which are wrong",
            (),
        ),
        ((A, B, A, B), "the replicas differ in the parameters after step 50: ranks 0,2 and ranks 1,3; ", ()),
        ((A, B, C), "the replicas differ in the parameters after step 50: rank 0 and rank 1 and rank 2; ", ()),
    ],
)
def test_majority_decides_which_rank_differs(
    ranks: tuple[dict[str, str], ...], text: str, nodes: tuple[str, ...]
) -> None:
    finding = _found(*ranks)
    assert finding is not None
    assert finding.text.startswith(text)
    assert finding.nodes == nodes
    assert "before step 50" in finding.remedy
    assert ("rank 0, which is one of them," in finding.remedy) == ("n0" in nodes)


def test_first_step_that_differs_is_named() -> None:
    equal = {"50": "a", "100": "b", "1000": "c"}
    finding = _found(equal, {**equal, "100": "x", "1000": "y"}, equal)
    assert finding is not None
    assert finding.text.endswith("after step 100")


def test_only_steps_of_all_ranks_are_compared() -> None:
    """The nodes are observed at different times."""
    assert _found({"50": "a", "100": "b"}, {"100": "b", "150": "c"}, {"50": "a", "100": "b"}) is None
    assert _found({"50": "a"}, {"100": "b"}) is None


def test_step_that_is_repeated_after_a_roll_back_is_another_one() -> None:
    assert _found({"50": "a"}, {"50 after roll-back 1": "b"}) is None
    finding = _found({"50 after roll-back 1": "a"}, {"50 after roll-back 1": "b"}, {"50 after roll-back 1": "b"})
    assert finding is not None
    assert "after step 50 after roll-back 1" in finding.text


def test_ranks_that_have_not_reported_yet_delay_the_vote() -> None:
    progress = _reports(A, B, A)
    assert differing_replicas([_node("n0", {rank: progress[rank] for rank in (0, 1)})]) is None


@pytest.mark.parametrize(
    "report",
    [
        None,
        3,
        {},
        {"count": 2},
        {"count": "2", "steps": {}},
        {"count": 2, "steps": []},
        {"count": 2, "steps": {"50": 1}},
    ],
)
def test_progress_of_any_program_is_accepted(report: object) -> None:
    progress = {rank: {"step": "x", "replicas": report} for rank in (0, 1)}
    assert differing_replicas([_node("n0", progress)]) is None


def test_gradient_norm_is_compared_where_no_parameters_are_whole() -> None:
    finding = _found(A, A, B, name="gradient norm")
    assert finding is not None
    assert finding.text == "rank 2 differs from the 2 others in the gradient norm after step 50"


def test_ranks_that_train_past_their_wrapper_are_reported_with_that_cause_and_without_a_vote() -> None:
    progress = _reports(A, B, C)
    progress[1]["replicas"]["unsynchronised"] = "no_sync() is on"
    finding = differing_replicas([_node("n0", progress)])
    assert finding is not None
    assert finding.text == "each rank trains its own model: the parameters differ after step 50, as no_sync() is on"
    assert finding.nodes == ()
    progress[2]["replicas"]["steps"] = progress[0]["replicas"]["steps"]
    vote = differing_replicas([_node("n0", progress)])
    assert vote is not None
    assert vote.text == "rank 1 differs from the 2 others in the parameters after step 50", "two ranks are averaged"
    for report in progress.values():
        report["replicas"]["steps"] = {"50": {"parameters": "a"}}
    assert differing_replicas([_node("n0", progress)]) is None, "replicas that are equal need no cause"
