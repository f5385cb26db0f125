"""Slow ranks: late in two measurements in a row, by the arrivals that the ranks report."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.verdict.slow_ranks import SlowRanks, SlowRankWatch, slow_ranks
from trainer.runtime.arrivals import measure

STEP_S = 0.5
MEASUREMENTS = 600
CARDS: Any = {
    "time": 1.0,
    "tool": "nvidia-smi",
    "error": "",
    "cards": [{"index": 3, "utilization_percent": 100, "memory_used_mib": 900, "state": "P8"}],
    "idle": [],
    "expected": 1,
    "used": 1,
}


def _node(name: str, progress: Mapping[int, Any], **more: Any) -> NodeObservation:  # of any field
    return NodeObservation(
        name, None, alive=True, same_boot=True, finished=None, first_failure=None, progress=progress, **more
    )


def _nodes(
    *windows: Sequence[float | None], steps: Sequence[int] = (), more: Mapping[str, Any] = {}
) -> list[NodeObservation]:
    """Two ranks on each node; a window has the arrival of each rank, None if it has not reported."""
    numbers = steps or [20 * (number + 1) for number in range(len(windows))]
    nodes = []
    for first in range(0, len(windows[0]), 2):
        progress = {}
        for rank in (first, first + 1):
            arrivals = {
                str(step): {"step_s": STEP_S, "calls": 2, "at_s": [0.01, at], "error_s": 0.005, **more}
                for step, window in zip(numbers, windows, strict=True)
                if (at := window[rank]) is not None
            }
            progress[rank] = {"step": 99, "arrivals": {"count": len(windows[0]), "steps": arrivals}}
        nodes.append(_node(f"n{first // 2}", progress))
    return nodes


USUAL, ONE_LATE = (0.2, 0.21, 0.2, 0.2), (0.2, 0.21, 0.2, 0.45)


@pytest.mark.parametrize(
    ("windows", "ranks"),
    [
        ((ONE_LATE, ONE_LATE), (3,)),
        ((USUAL, ONE_LATE, ONE_LATE), (3,)),
        ((ONE_LATE, ONE_LATE, USUAL, USUAL), ()),
        (((0.2, 0.2, 0.4, 0.4), (0.2, 0.2, 0.4, 0.4)), (2, 3)),
        (((0.2, 0.4), (0.2, 0.4)), (1,)),
        (((0.2, 0.4, 0.4, 0.4), (0.2, 0.4, 0.4, 0.4)), ()),  # one that is fast makes the others not slow
        (((0.2, 0.2, 0.2, 0.24), (0.2, 0.2, 0.2, 0.24)), ()),  # below a tenth of the step
    ],
)
def test_ranks_are_slow_if_they_are_late_twice(windows: Sequence[Sequence[float]], ranks: tuple[int, ...]) -> None:
    slow = slow_ranks(_nodes(*windows))
    assert slow is not None
    assert slow.ranks == ranks
    assert (slow.finding is None) == (not ranks)


@pytest.mark.parametrize(
    "windows",
    [
        (ONE_LATE,),  # one measurement
        (USUAL, ONE_LATE),  # in one of two only
        ((0.2, 0.2, 0.45, 0.2), ONE_LATE),  # each time another
        ((0.2, 0.2, None, 0.45), (0.2, 0.2, 0.2, 0.45)),  # not measured after the same steps
    ],
)
def test_too_few_measurements_change_nothing(windows: Sequence[Sequence[float | None]]) -> None:
    assert slow_ranks(_nodes(*windows)) is None


def test_rank_that_is_missing_or_reports_anything_else_changes_nothing() -> None:
    nodes = _nodes(ONE_LATE, ONE_LATE)
    assert slow_ranks(nodes[:1]) is None
    for value in (None, 5, {"count": "4", "steps": {}}, {"count": 4, "steps": {"20": 1}}):
        nodes[0].progress[0]["arrivals"] = value  # type: ignore[index]
        assert slow_ranks(nodes) is None
    nodes = _nodes(ONE_LATE, ONE_LATE)
    nodes[0].progress[0]["arrivals"]["steps"]["40"] = {"step_s": "x", "calls": 2, "at_s": ["y", None]}
    assert not (slow_ranks(nodes) or SlowRanks()).ranks
    slow = slow_ranks(_nodes(ONE_LATE, ONE_LATE, more={"cpu_wait": "?"}))
    assert slow is not None
    assert "(n1: nothing more is known)" in str(slow.text)


def test_finding_names_rank_node_factor_and_what_the_node_shows() -> None:
    nodes = _nodes(ONE_LATE, ONE_LATE, more={"cpu_wait": 0.31})
    slow = slow_ranks(nodes)
    assert slow is not None
    assert slow.text == (
        "n1: rank 3 is slow: it arrives 250 ms later than most at the collectives of a step of 500 ms, after 2.2 times their time, and "
        "the others wait for it (n1: it waits 31% of the time for a CPU: other processes use them, or too few are bound); the run "
        "continues; `orch check --level full --nodes n1` tests the node"
    )


def test_limit_of_cpu_time_is_named_and_not_other_processes() -> None:
    slow = slow_ranks(_nodes(ONE_LATE, ONE_LATE, more={"cpu_wait": 0.36, "cpu_limited": 0.49}))
    assert slow is not None
    assert slow.finding is not None
    limit = "its cgroup reaches its limit of CPU time in 49% of the periods (nr_throttled in cpu.stat)"
    assert slow.finding.evidence == f"n1: it waits 36% of the time for a CPU: {limit}"


def test_cards_of_a_slow_node_are_shown() -> None:
    nodes = _nodes(ONE_LATE, ONE_LATE)
    with_cards = _node("n1", nodes[1].progress, cards=CARDS)
    slow = slow_ranks([nodes[0], with_cards])
    assert slow is not None
    assert slow.finding is not None
    assert slow.finding.evidence == "n1: nvidia-smi: card 3 100 % 900 MiB P8"


def test_rank_that_spends_the_shortest_time_in_collectives_of_cards_is_slow() -> None:
    nodes = _nodes(USUAL, USUAL)
    for node in nodes:
        for rank, progress in node.progress.items():
            for measured in progress["arrivals"]["steps"].values():
                del measured["at_s"]
                measured["in_collectives_s"] = 0.02 if rank == 2 else 0.25
    slow = slow_ranks(nodes)
    assert slow is not None
    assert slow.ranks == (2,)
    assert "230 ms later than most at the collectives of a step of 500 ms, after 1.9 times their time" in str(slow.text)


def test_change_is_reported_once() -> None:
    watch = SlowRankWatch()
    assert watch.change(_nodes(USUAL, USUAL)) == SlowRanks(), (
        "the first result: an earlier process may have found others"
    )
    assert watch.change(_nodes(USUAL, USUAL)) is None
    change = watch.change(_nodes(ONE_LATE, ONE_LATE))
    assert change is not None
    assert change.ranks == (3,)
    assert watch.change(_nodes(ONE_LATE, (0.2, 0.2, 0.2, 0.4))) is None
    assert watch.change(_nodes(USUAL, ONE_LATE)) is None
    end = watch.change(_nodes(USUAL, USUAL))
    assert end is not None
    assert end.text is None


def test_noise_names_nobody() -> None:
    """8 ranks whose steps take 0.02 to 0.3 s at random: no false alarm in an hour; at 3 standard errors there is one."""
    draw = random.Random(4)

    def window() -> dict[str, Any]:
        entries, syncs_ns, now_s = [], [0], 0.0
        for _ in range(20):
            arrival_s = draw.uniform(0.02, 0.3)
            entries.append({"time_created_ns": int((now_s + arrival_s) * 1e9), "profiling_name": "gloo:all_reduce"})
            now_s += 0.3
            syncs_ns.append(int(now_s * 1e9))
        return measure(entries, syncs_ns)

    windows = [[window() for _ in range(8)] for _ in range(MEASUREMENTS)]
    for before, now in itertools.pairwise(windows):
        progress = {
            rank: {"step": 99, "arrivals": {"count": 8, "steps": {"20": before[rank], "40": now[rank]}}}
            for rank in range(8)
        }
        slow = slow_ranks([_node("n0", progress)])
        assert slow is None or not slow.ranks
