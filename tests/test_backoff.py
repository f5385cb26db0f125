from __future__ import annotations

from itertools import islice

from orchestrator.backoff import backoff


def test_pauses_double_up_to_the_limit() -> None:
    for pause_s, middle_s in zip(islice(backoff(1.0, 0.2), 6), [0.2, 0.4, 0.8, 1.0, 1.0, 1.0], strict=True):
        assert middle_s * 0.5 <= pause_s <= middle_s * 1.5


def test_pauses_are_random() -> None:
    assert list(islice(backoff(5.0), 6)) != list(islice(backoff(5.0), 6))
