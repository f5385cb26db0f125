"""The step, the loss, the speed and the remaining time of a training, by progress files that any program may have written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from orchestrator.verdict.training import Pace, Training, training_of

REPORT = {"step": 30, "steps": 100, "phase": "step", "time": 50.0, "loss": 2.5, "step_s": 0.5, "saved": 20}


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ({}, None),
        ({0: {"phase": "init", "time": 1.0}}, None),
        ({0: REPORT}, Training(30, 100, "step", 2.5, 0.5, saved=20, written_s=50.0)),
        ({0: {"step": 30}}, Training(30)),
        ({0: {"step": 3, "saved": None}}, Training(3, saved=0)),
        ({1: {"step": 3}, 2: {"step": 4}}, Training(4)),  # rank 0 has not reported, or its node is away
        ({0: {"step": 3}, 1: {"step": 4, "loss": 1.5}}, Training(3, loss=1.5)),
        ({0: {"step": 3, "saved": 1}, 1: {"step": 3, "saved": 2}}, Training(3, saved=2)),
        ({0: {"step": 3, "per_step": 4096, "unit": "tokens"}}, Training(3, per_step=4096, unit="tokens")),
        # values of no use
        ({0: {"step": True}}, None),
        ({0: {"step": "4"}}, None),
        (
            {0: {"step": 4, "steps": "9", "loss": "low", "step_s": -1, "time": "noon", "unit": 5, "phase": 7}},
            Training(4),
        ),
        ({0: {"step": 4, "step_s": math.nan, "per_step": math.inf, "time": True}}, Training(4)),
    ],
)
def test_training_by_progress_files(progress: dict[int, dict[str, Any]], expected: Training | None) -> None:
    assert training_of(progress) == expected


@pytest.mark.parametrize(
    ("training", "rate", "eta_s", "unsaved"),
    [
        (Training(30, 100, step_s=0.5, saved=20), (2.0, "steps"), 35.0, 10),
        (Training(30, 100, step_s=0.5, per_step=4096, unit="tokens"), (8192.0, "tokens"), 35.0, None),
        (Training(30, 100, saved=0), None, None, 30),
        (Training(30, step_s=0.5), (2.0, "steps"), None, None),
        (Training(100, 100, saved=100), None, 0.0, 0),
        (Training(7, phase="done"), None, 0.0, None),
    ],
)
def test_derived_values(
    training: Training, rate: tuple[float, str] | None, eta_s: float | None, unsaved: int | None
) -> None:
    assert (training.rate, training.eta_s, training.unsaved) == (rate, eta_s, unsaved)


def test_nan_of_the_loss_is_kept_but_not_in_json() -> None:
    training = training_of({0: {"step": 4, "loss": math.nan}})
    assert training is not None
    assert training.loss is not None
    assert math.isnan(training.loss)
    assert json.loads(json.dumps(training.to_json(), allow_nan=False))["loss"] is None


def test_speed_follows_from_two_looks_if_the_program_does_not_report_it() -> None:
    pace = Pace()
    looks = [Training(step, 100, written_s=at_s) for step, at_s in ((10, 5.0), (10, 6.0), (14, 7.0), (20, 10.0))]
    assert [pace.add(look).step_s for look in looks] == [None, None, 0.5, 0.5]
    assert pace.add(Training(21, 100, written_s=200.0)).step_s == 190.0  # the last step took that long
    assert pace.add(Training(3, 100, written_s=201.0)).step_s is None  # another attempt
    assert pace.add(Training(3, step_s=9.0, written_s=202.0)).step_s == 9.0
