"""Times that a node wrote, by the clock of the machine that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.endpoint.replies import Finished, ReplyWindow

if TYPE_CHECKING:
    from orchestrator.node.events import Event, RankResult


@pytest.mark.parametrize(
    ("now_there", "correction_s"),
    [(100.0, 0.0), (102.0, 0.0), (101.5, 0.0), (99.0, 1.0), (104.0, -2.0), (3700.0, -3598.0), (None, 0.0)],
)
def test_clock_that_may_be_right_is_believed_and_another_is_moved_as_little_as_can_be(
    now_there: float | None, correction_s: float
) -> None:
    assert ReplyWindow(earliest=100.0, latest=102.0).correction_s(now_there) == correction_s


def test_nothing_is_concluded_from_a_clock_here_that_was_set_meanwhile() -> None:
    assert ReplyWindow(earliest=3700.0, latest=100.0).correction_s(50.0) == 0.0


def test_failed_node_counts_from_the_failure_of_its_rank_not_from_the_end_of_the_others() -> None:
    """A sibling that ignores SIGTERM holds the agent up, while ranks elsewhere fail of the first failure's consequences."""
    exit_: RankResult = {"rank": 3, "code": 1, "signal": None, "error": None, "time": 5.0}
    event: Event = {"event": "agent-finished", "time": 15.0, "state": "FAILED", "exit": exit_, "text": ""}
    assert Finished.of(event, -1.0).time == 4.0
    assert Finished.of({**event, "exit": None}, -1.0).time == 14.0
