"""The conditions that are wrong with a run that continues, and the evidence."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.run import RunRecord
from orchestrator.verdict.conditions import conditions
from tests.verdict.test_overview import STUCK, node, record

IDLE: Any = {"tool": "nvidia-smi", "time": 0.0, "expected": 2, "used": 1, "idle": [1], "cards": []}
INFINITE = node("n1", (2, 3), progress={rank: {"step": 7, "loss": float("inf")} for rank in (2, 3)})


@pytest.mark.parametrize(
    ("run", "nodes", "found"),
    [
        (record(), [node()], {}),
        (record(slow="rank 1 is slow"), [node()], {"SLOW": "rank 1 is slow"}),
        (record(replicas="rank 1 differs"), [node()], {"DIFFERS": "rank 1 differs"}),
        (record(), [node(), INFINITE], {"NOT_FINITE": "rank 2, step 7: inf and 1 more"}),
        (record(), [node(cards=IDLE), node("n1", cards=IDLE)], {"IDLE_CARDS": "n[0-1]: 1 of 2 cards idle"}),
        (record(), [node(cards=IDLE, finished=object())], {}),
    ],
)
def test_conditions_are_those_of_ranks_that_run(
    run: RunRecord, nodes: list[NodeObservation], found: dict[str, str]
) -> None:
    assert conditions(run, nodes) == found


def test_ranks_without_progress_are_named_with_the_one_that_they_wait_for() -> None:
    assert "rank 3 on n1" in conditions(record(), STUCK)["NO_PROGRESS"]
