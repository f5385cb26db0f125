"""The speed in the progress file: recent, and without the first step."""

from __future__ import annotations

import pytest

from trainer.runtime.pace import KEPT_S, Pace


def _pace(*added: tuple[float, int]) -> Pace:
    pace = Pace()
    for now_s, step in added:
        pace.add(now_s, step)
    return pace


@pytest.mark.parametrize(
    ("added", "step_s"),
    [
        ([], None),
        ([(0.0, 0)], None),
        ([(0.0, 0), (60.0, 1)], None),  # the first step compiles and loads
        ([(0.0, 0), (60.0, 1), (60.5, 2), (61.0, 3)], 0.5),
        ([(0.0, 7), (30.0, 8), (31.0, 10), (99.0, 10)], 0.5),  # resumed; an evaluation is not over
        ([(0.0, 7), (30.0, 8), (31.0, 10), (32.0, 5), (33.0, 6)], None),  # a roll-back
        ([(0.0, 0), (100.0, 1), (300.0, 2), (600.0, 3)], 300.0),
    ],
)
def test_seconds_of_a_step(added: list[tuple[float, int]], step_s: float | None) -> None:
    assert _pace(*added).step_s == step_s


def test_speed_of_long_ago_is_forgotten() -> None:
    fast = [(float(second), 10 * second) for second in range(100)]
    slow = [(100.0 + second, 1000 + second) for second in range(int(2 * KEPT_S) + 2)]
    assert _pace(*fast, *slow).step_s == 1.0
