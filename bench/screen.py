"""The processor time of one frame of `orch top`, for 64 nodes of 8 ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace
from orchestrator.cli.screen import changes
from orchestrator.cli.top_frame import Selection, frame
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.run import RunRecord, RunState
from orchestrator.verdict.health import Known, Observed
from orchestrator.verdict.overview import overview

NODES, RANKS, CARDS = 64, 8, 8
WIDTH, HEIGHT = 160, 50
FRAMES = 20
CLOSED, OPEN, OVERVIEW = "frame and changes", "frame and changes, all nodes open", "overview of the observations"
FIGURE = "processor time"
DESCRIPTION = f"""\
A frame of `orch top` for {NODES} nodes of {RANKS} ranks and {CARDS} cards, {WIDTH} columns by {HEIGHT} lines, and the text that turns the one before into it; each rank makes a step
between two frames. Computed in this process, without a terminal."""


def measure(_workspace: Workspace, *, repetitions: int) -> Measure:
    """Time frames, and the overview that a look computes for them."""
    return Measure(
        title="A frame of orch top",
        description=DESCRIPTION,
        reference=CLOSED,
        figures=(FIGURE,),
        targets=(Target(CLOSED, FIGURE, 0.01),),  # 1 % of a core at one frame a second
        series=run_rounds(
            [_frames(CLOSED, 0), _frames(OPEN, NODES), Contestant(OVERVIEW, _overview)], repetitions=repetitions
        ),
    )


def _frames(name: str, open_nodes: int) -> Contestant:
    selection = Selection(open=frozenset(f"h800-{number:02}" for number in range(open_nodes)), colour=True)
    looks = [overview(_known(step)) for step in range(FRAMES)]

    def run() -> Mapping[str, float]:
        begun_s, before = time.process_time(), list[str]()
        for index, look in enumerate(looks):
            after = frame(look, WIDTH, HEIGHT, replace(selection, row=index))
            assert changes(before, after)
            before = after
        return {FIGURE: (time.process_time() - begun_s) / FRAMES}

    return Contestant(name, run)


def _overview() -> Mapping[str, float]:
    known = _known(5)
    begun_s = time.process_time()
    assert len(overview(known).nodes) == NODES
    return {FIGURE: time.process_time() - begun_s}


def _known(step: int) -> Known:
    record = RunRecord(
        "h800-20261129-031201-6517", "ssh", RunState.RUNNING, "2026-11-29T03:12:01+00:00", {}, {}, {}, {}, started=True
    )
    now_s = 1_796_000_000.0 + step
    return Known(record, now_s, observed=[Observed(_node(number, step, now_s), now_s) for number in range(NODES)])


def _node(number: int, step: int, now_s: float) -> NodeObservation:
    ranks = range(RANKS * number, RANKS * (number + 1))
    arrivals = {
        "count": NODES * RANKS,
        "steps": {"20": {"step_s": 0.5, "calls": 2, "at_s": [0.2, 0.3], "error_s": 0.001, "cpu_wait": 0.1}},
    }
    report = {
        "step": step,
        "steps": 100,
        "phase": "step",
        "time": now_s,
        "loss": 2.4,
        "step_s": 0.5,
        "saved": 0,
        "arrivals": arrivals,
    }
    card = {"utilization_percent": 97, "memory_used_mib": 70_000, "temperature_c": 61, "state": "P0"}
    cards: Any = {"time": now_s, "cards": [{"index": index, **card} for index in range(CARDS)], "expected": CARDS}
    return NodeObservation(
        f"h800-{number:02}",
        None,
        alive=True,
        same_boot=True,
        finished=None,
        first_failure=None,
        ranks=dict.fromkeys(ranks, "running"),
        progress=dict.fromkeys(ranks, report),
        cards=cards,
    )
