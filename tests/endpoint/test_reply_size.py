"""The size of the replies with log content."""

from __future__ import annotations

import pytest

from orchestrator.endpoint.reply_size import FIRST_BYTES, LEAST_BYTES, MOST_BYTES, REPLY_S, ReplySize


def _durations(size: ReplySize, bytes_per_s: float, *, limit: int = 1 << 20) -> list[float]:
    """The seconds that each of ten replies takes on a link of that speed."""
    durations = []
    for _ in range(10):
        reply = min(size.bytes, limit)
        durations.append(reply / bytes_per_s)
        size.add(reply, durations[-1])
    return durations


def test_a_reply_takes_less_than_a_second_at_a_megabyte_per_second() -> None:
    durations = _durations(ReplySize(), 1e6)
    assert max(durations) < 0.5
    assert durations[-1] == pytest.approx(REPLY_S, rel=0.01)


def test_replies_follow_the_changes_of_a_link() -> None:
    size = ReplySize()
    assert _durations(size, 1e9)[-1] == pytest.approx((1 << 20) / 1e9)
    assert _durations(size, 1e5)[-1] == pytest.approx(REPLY_S, rel=0.01)
    assert _durations(size, 1e3)[-1] == pytest.approx(LEAST_BYTES / 1e3)
    _durations(size, 1e9, limit=1 << 30)
    assert size.bytes == MOST_BYTES


def test_short_replies_do_not_show_the_speed() -> None:
    size = ReplySize()
    size.add(100, 0.01)
    size.add(0, 0.0)
    assert size.bytes == FIRST_BYTES
    size.add(100, 10.0)
    assert size.bytes == LEAST_BYTES
