"""The arrivals at the collectives of a step, from a flight record."""

from __future__ import annotations

import itertools
import math
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from trainer.runtime import arrivals as module
from trainer.runtime.arrivals import KEPT, STEPS, Arrivals, describe_slowest, measure

pytestmark = pytest.mark.trains

SECOND_NS = 1_000_000_000
SYNCS_NS = [number * SECOND_NS for number in range(STEPS + 1)]


def _entries(step: int, *at_s: float, backend: str = "gloo", **more: float) -> list[dict[str, Any]]:
    """The collectives of a step that began at `step` seconds."""
    return [
        {"time_created_ns": int((step + at) * SECOND_NS), "profiling_name": f"{backend}:all_reduce", **more}
        for at in at_s
    ]


def test_arrivals_are_medians_of_the_steps_with_the_usual_number_of_collectives() -> None:
    usual = [entry for step in range(2, STEPS) for entry in _entries(step, 0.5, 0.6, 0.7, 0.8, 0.9)]
    late = _entries(0, 0.95, 0.96, 0.97, 0.98, 0.99)
    with_evaluation = _entries(1, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    before, after = _entries(-1, 0.5), _entries(STEPS, 0.5)
    found = measure([*after, *usual, *with_evaluation, *late, *before], SYNCS_NS)
    assert found == {"step_s": 1.0, "calls": 5, "at_s": [0.5, 0.6, 0.8, 0.9], "error_s": 0.0}


def test_time_in_collectives_is_measured_by_the_card_or_not_at_all() -> None:
    """A collective of NCCL is enqueued long before the card begins it, so the enqueueing is no arrival."""
    timed = [entry for step in range(STEPS) for entry in _entries(step, 0.1, 0.2, backend="nccl", duration_ms=150.0)]
    assert measure(timed, SYNCS_NS) == {"step_s": 1.0, "calls": 2, "in_collectives_s": 0.3, "error_s": 0.0}
    untimed = [entry for step in range(STEPS) for entry in _entries(step, 0.1, 0.2, backend="nccl")]
    assert measure(untimed, SYNCS_NS) == {}
    newest = 2 * 2  # entries of two steps, whose durations torch has not written yet
    assert measure([*timed[:-newest], *untimed[-newest:]], SYNCS_NS) == measure(timed, SYNCS_NS)
    assert measure([], SYNCS_NS) == {}


@pytest.fixture
def group() -> Any:  # torch's types lack its methods
    """A real group of one rank, whose collectives torch records."""
    return dist.ProcessGroupGloo(torch._C._distributed_c10d.HashStore(), 0, 1, timedelta(seconds=30))


MEASURED = 40


def _measurements(group: Any) -> tuple[list[int], dict[str, Any]]:
    """The steps after which short steps were measured, and the newest values."""
    arrivals, due, found = Arrivals(), [], {}
    for step in range(1, MEASURED * STEPS + 1):
        group.allreduce([torch.ones(1)]).wait()
        if values := arrivals.after_sync(step, 2):
            due.append(step)
            found = values["arrivals"]
    return due, found


def test_measurements_are_repeated_less_often_if_they_take_too_large_a_share_of_the_steps(group: Any) -> None:
    due, _ = _measurements(group)
    assert len(due) < MEASURED // 2, "a measurement takes longer than 20 steps of one small collective"
    assert all(step % STEPS == 0 for step in due), "so that all ranks measure after the same steps"
    intervals = [after - before for before, after in itertools.pairwise(due)]
    assert intervals == sorted(intervals)


def test_record_of_torch_is_measured_after_every_20_steps(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "LARGEST_SHARE", math.inf
    )  # steps of microseconds beside a measurement that a busy machine delays
    due, found = _measurements(group)
    assert due == list(range(2 * STEPS, MEASURED * STEPS + 1, STEPS)), "the first step has no sync before it"
    assert found["count"] == 2
    newest = found["steps"][str(due[-1])]
    assert newest["calls"] == 1
    assert 0 <= newest["at_s"][0] <= newest["step_s"]
    assert list(found["steps"]) == [str(step) for step in due[-KEPT:]]


def test_record_that_cannot_be_read_is_reported_once_and_the_training_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entries of another version of torch may have other keys."""
    monkeypatch.setattr(module, "flight_entries", lambda: [{"time_created_us": 1}] * STEPS)
    arrivals = Arrivals()
    assert [arrivals.after_sync(step, 2) for step in range(1, 4 * STEPS + 1)] == [{}] * (4 * STEPS)
    assert capsys.readouterr().err == (
        "WARNING: slow ranks are not found, as the flight record of torch cannot be read: KeyError('time_created_ns')\n"
    )


def test_one_rank_has_no_arrivals(group: Any) -> None:
    arrivals = Arrivals()
    for step in range(1, 2 * STEPS + 1):
        group.allreduce([torch.ones(1)]).wait()
        assert arrivals.after_sync(step, 1) == {}


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        (
            [{"step_s": 0.2, "at_s": [0.01, at_s]} for at_s in (0.05, 0.08, 0.05)],
            "slowest rank 1: it came 30.0 ms of a step of 200.0 ms after the median rank, by steps 41 to 60",
        ),
        (
            [{"step_s": 0.2, "in_collectives_s": in_s} for in_s in (0.05, 0.05, 0.01)],
            "slowest rank 2: it came 40.0 ms of a step of 200.0 ms after the median rank, by steps 41 to 60",
        ),
        ([{"step_s": 0.2, "at_s": [0.1]}, {"step_s": 0.2}], ""),
    ],
)
def test_slowest_rank_is_the_one_that_most_others_wait_for(measured: list[dict[str, Any]], line: str) -> None:
    assert describe_slowest(measured, 60) == line


def test_ranks_without_a_common_measurement_have_no_slowest_rank() -> None:
    assert Arrivals().slowest(lambda mine: [mine, b'{"40": {"step_s": 1, "at_s": [0.1]}}']) == ""
