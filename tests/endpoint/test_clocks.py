"""Conversion of a node's times to the clock of the machine that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.endpoint.replies import Finished, NodeObservation, ReplyWindow

if TYPE_CHECKING:
    from orchestrator.node import messages
    from orchestrator.node.events import Event, RankResult


@pytest.mark.parametrize(
    ("now_there", "correction_s"),
    [(100.0, 0.0), (102.0, 0.0), (101.5, 0.0), (99.0, 1.0), (104.0, -2.0), (3700.0, -3598.0), (None, 0.0)],
)
def test_plausible_clock_is_trusted_and_another_corrected_to_the_nearest_bound(
    now_there: float | None, correction_s: float
) -> None:
    assert ReplyWindow(earliest=100.0, latest=102.0).correction_s(now_there) == correction_s


def test_no_correction_if_this_machines_clock_was_set_in_between() -> None:
    assert ReplyWindow(earliest=3700.0, latest=100.0).correction_s(50.0) == 0.0


def test_time_of_a_failed_node_is_that_of_its_ranks_failure() -> None:
    """A sibling that ignores SIGTERM delays the agent's end, while ranks of other nodes fail as a consequence."""
    exit_: RankResult = {"rank": 3, "code": 1, "signal": None, "error": None, "time": 5.0}
    event: Event = {"event": "agent-finished", "time": 15.0, "state": "FAILED", "exit": exit_, "text": ""}
    assert Finished.of(event, -1.0).time == 4.0
    assert Finished.of({**event, "exit": None}, -1.0).time == 14.0


def test_time_of_progress_is_that_of_this_machines_clock() -> None:
    """The clock there is an hour behind; any program may write the file, with any content."""
    progress: dict[int, messages.Json] = {0: {"time": 95.0, "step": 7}, 1: {"time": "95"}, 2: {}}
    body: messages.NodeBody = {
        "node": "n0",
        "agent": None,
        "alive": True,
        "stopped": False,
        "same_boot": True,
        "clock": 100.0,
        "finished": None,
        "ranks": {},
        "first_failure": None,
        "progress": progress,
        "stacks": {},
        "folder": "",
        "log": "",
    }
    observation = NodeObservation.of(body, ReplyWindow(earliest=3700.0, latest=3702.0))
    assert observation.progress == {0: {"time": 3695.0, "step": 7}, 1: {"time": "95"}, 2: {}}
