"""Conversion of a node's times to the clock of the machine that reads them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from orchestrator.endpoint.clock import ClockBounds
from orchestrator.endpoint.observation import Finished, NodeObservation
from orchestrator.node.endpoint.serve import Handlers
from orchestrator.node.protocol.operations import START
from orchestrator.node.run.events import Clock
from tests.until import until

if TYPE_CHECKING:
    from orchestrator.node.endpoint.start import Starter
    from orchestrator.node.protocol.agents import NodeBody
    from orchestrator.node.protocol.connection import Empty, ReplyHeader
    from orchestrator.node.run.events import Event, RankResult


@pytest.mark.parametrize(
    ("now_there", "correction_s"),
    [(100.0, 0.0), (102.0, 0.0), (101.5, 0.0), (99.0, 1.0), (104.0, -2.0), (3700.0, -3598.0), (None, 0.0)],
)
def test_plausible_clock_is_trusted_and_another_corrected_to_the_nearest_bound(
    now_there: float | None, correction_s: float
) -> None:
    ahead_s = None if now_there is None else now_there - 50.0
    assert ClockBounds(100.0 - 50.0, 102.0 - 50.0).correction_s(ahead_s) == correction_s


def test_no_correction_if_this_machines_clock_was_set_in_between() -> None:
    assert ClockBounds(3690.0, 90.0).correction_s(40.0) == 0.0


def test_time_of_a_failed_node_is_that_of_its_ranks_failure() -> None:
    """A sibling that ignores SIGTERM delays the agent's end, while ranks of other nodes fail as a consequence."""
    exit_: RankResult = {"rank": 3, "code": 1, "signal": None, "error": None, "time": 5.0}
    event: Event = {"event": "agent-finished", "time": 15.0, "state": "FAILED", "exit": exit_, "text": ""}
    assert Finished.of(event, -1.0).time == 4.0
    assert Finished.of({**event, "exit": None}, -1.0).time == 14.0


def test_time_of_progress_is_that_of_this_machines_clock() -> None:
    """The clock there is an hour behind; any program may write the file, with any content."""
    progress: dict[int, dict[str, Any]] = {0: {"time": 95.0, "step": 7}, 1: {"time": "95"}, 2: {}}
    body: NodeBody = {
        "node": "n0",
        "agent": None,
        "alive": True,
        "stopped": False,
        "same_boot": True,
        "clock_ahead_s": 40.0,
        "finished": None,
        "ranks": {},
        "first_failure": None,
        "progress": progress,
        "stacks": {},
        "folder": "",
        "log": "",
    }
    observation = NodeObservation.of(body, ClockBounds(3640.0, 3642.0))
    assert observation.progress == {0: {"time": 3695.0, "step": 7}, 1: {"time": "95"}, 2: {}}


def test_clock_is_right_however_long_the_reply_takes_after_it_was_read() -> None:
    """The program may be descheduled while it answers, before the time for which it held the request is computed."""

    def slow(_request: object, _payload: bytes) -> tuple[Empty, bytes]:
        until(lambda: time.monotonic() > begun + 0.01, awaited="more than the error of reading a clock")
        return {}, b""

    starter, clock = SimpleNamespace(start=slow, stand_by=slow), Clock()
    handlers = Handlers(cast("Starter", starter), 0o077)
    begun = time.monotonic()
    sent = clock.now()
    with pytest.raises(StopIteration) as end:
        next(handlers.answer({"op": START, "number": 0, "bytes": 0}, b""))
    header, _ = end.value.value
    reply = cast("ReplyHeader", header)
    bounds = ClockBounds.of(reply, sent_s=sent, arrived_s=clock.now())
    assert bounds.correction_s(clock.ahead_s) == 0.0


def test_bounds_of_a_late_reply_are_those_of_an_earlier_one_unless_a_clock_was_set() -> None:
    earlier = ClockBounds(10.0, 10.1)
    assert ClockBounds(5.0, 15.0).within(earlier) == earlier
    assert ClockBounds(10.05, 15.0).within(earlier) == ClockBounds(10.05, 10.1)
    assert ClockBounds(20.0, 21.0).within(earlier) == ClockBounds(20.0, 21.0)
