"""orch stats: how the time of a run was spent, from what its nodes have recorded; no process is started."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import app
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError, Unreachable, UsageError
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.records.runs import home_store
from orchestrator.run import Failure, Program, RankExit, Request, RunRecord, RunState, Shape
from orchestrator.usecases.reports.attempts import NodeRecord, attempt_of
from orchestrator.usecases.reports.diff import RecordedRun
from orchestrator.usecases.reports.stats import (
    Interval,
    best_interval_s,
    best_timeline,
    expected_ettr,
    history,
    kept_timeline,
    scaling,
)
from orchestrator.usecases.reports.timeline import Attempt, Step, timeline

# An attempt that fails in step 31 after a save at step 20, and one that continues there; a step takes 1 s, the first one 6 s.
FIRST = Attempt(
    agent_started=103.0,
    ranks_started=105.0,
    failed=158.0,
    stopping=160.0,
    ended=163.0,
    progress=157.0,
    milestones={"restore": 115.0, "restored": 116.0, "first_step": 118.0, "first_step_end": 124.0},
    step=30,
    saved=20,
    saves=2,
    save_s=6.0,
)
SECOND = Attempt(
    agent_started=168.0,
    ranks_started=170.0,
    ended=207.0,
    progress=206.0,
    milestones={"restore": 180.0, "restored": 182.0, "first_step": 183.0, "first_step_end": 189.0},
    resumed=20,
    step=35,
    saved=35,
    saves=1,
    save_s=3.0,
)


def _steps() -> list[Step]:
    """Each step once, as metrics.jsonl has them: 1 to 20 of the first attempt, with a save of 3 s after 10, 21 to 35 of the second."""
    first = [
        Step(number, 123.0 + number + (3.0 if number > 10 else 0.0), 6.0 if number == 1 else 1.0)
        for number in range(1, 21)
    ]
    return first + [Step(number, 168.0 + number, 6.0 if number == 21 else 1.0) for number in range(21, 36)]


def _lost(**parts: float) -> dict[str, float]:
    names = ("check", "init", "restore", "first step", "between steps", "repeated steps", "detect", "stop")
    return {name: parts.get(name.replace(" ", "_"), 0.0) for name in names}


def test_time_of_two_attempts_is_split_into_parts_that_add_up() -> None:
    measured = timeline(100.0, [FIRST, SECOND], _steps(), is_queued=False, has_failed=False)
    assert measured.wall_s == 107.0
    assert measured.lost == _lost(
        check=5.0 + 7.0,
        init=10.0 + 10.0,
        restore=1.0 + 2.0,
        first_step=7.0 + 6.0,
        between_steps=3.0 + 3.0,
        repeated_steps=12.0,
        detect=2.0,
        stop=3.0 + 1.0,
    )
    assert measured.productive_s == 20.0 + 15.0
    assert measured.productive_s + sum(measured.lost.values()) == measured.wall_s
    assert (measured.repeated_steps, measured.failures, measured.saves, measured.save_s) == (10, 1, 3, 9.0)
    assert measured.ettr == pytest.approx(35 / 107)


def test_without_metrics_all_steps_take_equally_long() -> None:
    measured = timeline(100.0, [FIRST, SECOND], [], is_queued=False, has_failed=False)
    assert measured.lost["repeated steps"] == pytest.approx(34.0 / 3)
    assert measured.lost["between steps"] == 0.0
    assert measured.productive_s + sum(measured.lost.values()) == pytest.approx(measured.wall_s)


def test_steps_after_the_last_save_of_a_run_that_failed_are_lost() -> None:
    measured = timeline(100.0, [FIRST], _steps(), is_queued=False, has_failed=True)
    assert (measured.repeated_steps, measured.lost["repeated steps"]) == (10, 12.0)
    stopped = timeline(100.0, [replace(FIRST, failed=None)], _steps(), is_queued=False, has_failed=False)
    assert (stopped.repeated_steps, stopped.failures) == (0, 0)


def test_hang_is_detected_from_the_last_progress_on() -> None:
    hung = replace(FIRST, is_hang=True, failed=300.0, stopping=300.5, ended=302.0)
    measured = timeline(100.0, [hung], _steps(), is_queued=False, has_failed=True)
    assert (measured.lost["detect"], measured.lost["stop"]) == (300.5 - 157.0, 1.5)


def test_attempt_that_fails_in_init_lost_its_time_there() -> None:
    failed = Attempt(
        agent_started=103.0, ranks_started=105.0, failed=135.0, stopping=135.0, ended=136.0, milestones={"init": 106.0}
    )
    measured = timeline(100.0, [failed], [], is_queued=False, has_failed=True)
    assert measured.lost == _lost(check=5.0, init=30.0, stop=1.0)
    assert measured.productive_s == 0.0


def test_time_in_the_queue_is_not_part_of_the_run() -> None:
    measured = timeline(3.0, [FIRST], _steps(), is_queued=True, has_failed=True)
    assert (measured.queue_s, measured.wall_s, measured.lost["check"]) == (100.0, 60.0, 2.0)


@pytest.mark.parametrize("attempts", [[], [Attempt()], [Attempt(agent_started=101.0)], [Attempt(ended=99.0)]])
def test_run_that_has_recorded_next_to_nothing_has_no_time(attempts: Sequence[Attempt]) -> None:
    measured = timeline(100.0, attempts, [], is_queued=False, has_failed=True)
    assert (measured.wall_s, measured.productive_s, measured.ettr) == (0.0, 0.0, None)


def _node(
    name: str, events: Sequence[dict[str, Any]], progress: dict[int, dict[str, Any]], correction_s: float
) -> NodeRecord:
    observation = NodeObservation(
        name, None, alive=False, same_boot=True, finished=None, first_failure=None, progress=progress
    )
    return NodeRecord(observation, events, correction_s)


def _events(started: float, stopping: float, ended: float, exit_: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [
        {"time": started, "event": "agent-started"},
        {"time": started + 1, "event": "rank-started", "rank": 0},
        {"time": stopping, "event": "stopping"},
        {"time": ended, "event": "agent-finished", "state": "FAILED" if exit_ else "STOPPED", "exit": exit_},
    ]


def test_attempt_is_read_by_the_clock_of_this_machine_and_fails_with_the_earliest_exit() -> None:
    hang = {"rank": 1, "code": 1, "kind": "hang", "time": 1020.0}
    later = {"rank": 0, "code": 1, "kind": "code", "time": 21.0}
    times = {"first_step": 12.0, "first_step_end": 13.0, "text": "?"}
    main = {
        "step": 7,
        "phase": "step",
        "time": 19.0,
        "saved": 5,
        "resumed": 2,
        "saves": 1,
        "save_s": 0.5,
        "times": times,
    }
    records = [
        _node("n0", _events(10.0, 22.0, 24.0, later), {0: main}, 0.0),
        _node("n1", _events(1011.0, 1020.5, 1025.0, hang), {1: {"step": 8, "saved": None, "time": 18.0}}, -1000.0),
    ]
    assert attempt_of(records, 4, is_last=True) == Attempt(
        agent_started=10.0,
        ranks_started=12.0,
        failed=20.0,
        is_hang=True,
        stopping=22.0,
        ended=25.0,
        progress=19.0,
        milestones={"first_step": 12.0, "first_step_end": 13.0},
        resumed=2,
        step=8,
        saved=5,
        saves=1,
        save_s=0.5,
    )


def test_utilization_is_the_mean_of_all_samples_of_cards() -> None:
    samples = [(90.0, 30), (60.0, 10), (None, 0)]
    keys = {"time": 1.0, "tool": "nvidia-smi", "error": "", "cards": [], "idle": [], "expected": 8, "used": 8}
    cards: list[Any] = [
        {**keys, "mean_percent": mean, "samples": count} if mean is not None else None for mean, count in samples
    ]
    records = [_node(f"n{index}", [], {}, 0.0) for index in range(3)]
    records = [
        replace(record, observation=replace(record.observation, cards=card))
        for record, card in zip(records, cards, strict=True)
    ]
    with_cards, without = attempt_of(records, 0, is_last=True), attempt_of(records[2:], 0, is_last=True)
    assert (with_cards.utilization_percent, with_cards.utilization_samples) == (82.5, 40)
    whole = timeline(0.0, [with_cards, without], [], is_queued=False, has_failed=False)
    assert (whole.utilization_percent, whole.utilization_samples) == (82.5, 40)
    nothing = timeline(0.0, [without], [], is_queued=False, has_failed=False)
    assert (nothing.utilization_percent, nothing.utilization_samples) == (None, 0)


def test_attempt_that_requested_another_one_has_not_failed() -> None:
    requested = {"rank": 0, "code": 99, "kind": "code", "time": 21.0}
    assert attempt_of([_node("n0", _events(10.0, 22.0, 24.0, requested), {}, 0.0)], 4, is_last=False).failed is None


def test_attempt_without_an_end_was_lost_unless_it_is_the_last_one() -> None:
    records = [_node("n0", [{"time": 5.0, "event": "agent-started"}, {"time": 9.0, "event": "rank-started"}], {}, 0.0)]
    assert attempt_of(records, 4, is_last=False).failed == 9.0
    last = attempt_of(records, 4, is_last=True)
    assert (last.failed, last.resumed) == (None, 4)


def test_best_interval_is_that_of_young_for_short_saves_and_of_daly_for_long_ones() -> None:
    assert best_interval_s(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=1e-3)
    # a grid search over Daly's exact model of the time with exponential failures
    grid = [minutes * 60.0 for minutes in range(1, 600)]
    for save_s, mttf_s in ((300.0, 7200.0), (60.0, 28800.0), (600.0, 3600.0)):
        exact = min(grid, key=lambda interval_s: math.expm1((interval_s + save_s) / mttf_s) / interval_s)
        assert best_interval_s(save_s, mttf_s) == pytest.approx(exact, rel=0.05)
    assert best_interval_s(100.0, 10.0) == 10.0


def test_best_interval_has_the_best_expected_time() -> None:
    interval = Interval(60.0, 28.8 * 3600, "failures", in_use_s=7 * 3600.0, restart_s=600.0)
    assert interval.ettr(interval.best_s) > max(
        interval.ettr(interval.best_s * 0.7), interval.ettr(interval.best_s * 1.4)
    )
    # 128 nodes of 8 cards with 6.5 failures in 1,000 node-days: facts of arXiv:2410.21680, computed independently
    assert expected_ettr(60.0, 28.8 * 3600, 3600.0, 600.0) == pytest.approx(0.961, abs=0.001)


def _record(name: str, nodes: int, state: RunState, seconds: int, **fields: Any) -> None:  # fields of RunRecord
    """Record a run that began at noon and took this long."""
    inventory = Inventory(name="demo", nodes=tuple(Node(name=f"n{index}", workdir="/w") for index in range(nodes)))
    request = Request("ssh", Program("executable", ("true",)), shape=Shape(nodes, 1))
    plan = make_plan(inventory, request, run_id=f"{name}-20260102-120000-0abc", bundle="b")
    ended = f"2026-01-02T12:{seconds // 60:02}:{seconds % 60:02}+00:00"
    empty: dict[str, Any] = {"request": {}, "inventory": {}, "code": {}, "versions": {}, "node_count": nodes}
    times: dict[str, Any] = {"created": "2026-01-02T12:00:00+00:00", "ended": ended}
    record = RunRecord(plan.run_id, "ssh", state, **{"started": True, **times, **empty, **fields})
    home_store().create(record).write_plan(plan)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs that started, one that did not, and one of a ladder."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    _record("one", 1, RunState.DONE, 600, summary={"tokens_per_s": 100.0})
    _record("two", 2, RunState.DONE, 400, summary={"tokens_per_s": 180.0, "mfu": 0.4})
    failure = Failure(FailureClass.NETWORK, Retry.RETRY, nodes=("n1",))
    _record("failed", 2, RunState.FAILED, 200, exit=RankExit("n1", 1, 1, None), failure=failure, summary={})
    _record("refused", 2, RunState.FAILED, 100, started=False)
    _record("rung", 2, RunState.FAILED, 300, request={"is_trial": True})


@pytest.mark.usefixtures("recorded")
def test_throughput_of_two_runs_is_compared_per_node() -> None:
    compared = scaling(RecordedRun.find("two"), RecordedRun.find("one"))
    assert (compared.factor, compared.nodes_factor, compared.efficiency) == (1.8, 2.0, 0.9)
    with pytest.raises(UsageError, match=r"run failed-\S+ \(FAILED\) has reported no throughput"):
        scaling(RecordedRun.find("two"), RecordedRun.find("failed"))


@pytest.mark.usefixtures("recorded")
def test_history_counts_failures_and_time_of_all_runs_that_started() -> None:
    known = history()
    assert (dict(known.states), dict(known.classes), known.failures) == ({"DONE": 2, "FAILED": 1}, {"network": 1}, 1)
    assert (known.mttf_s, known.mttf_node_s, known.ettr) == (1200.0, 600.0 + 2 * 400 + 2 * 200, None)


@pytest.mark.usefixtures("recorded")
def test_time_in_the_queue_is_not_part_of_the_mean_time_between_failures(capsys: pytest.CaptureFixture[str]) -> None:
    before = history()
    RecordedRun.find("failed").folder.update(launcher="slurm")
    known = history()
    assert (known.failures, known.timed_failures, known.untimed) == (1, 0, 1)
    assert (known.run_s, known.node_s, known.mttf_s) == (before.run_s - 200, before.node_s - 400, None)
    assert app.run(["stats"]) == 0
    assert "without 1 Slurm run not measured" in capsys.readouterr().out
    measured = timeline(100.0, [FIRST], _steps(), is_queued=True, has_failed=True)
    RecordedRun.find("failed").folder.write_stats(asdict(measured))
    known = history()
    assert (known.timed_failures, known.untimed, known.mttf_s) == (1, 0, before.run_s - 200 + measured.wall_s)


@pytest.mark.usefixtures("recorded")
def test_attempts_that_requested_another_one_are_no_failures() -> None:
    ended = {"attempt": 1, "exit": asdict(RankExit("n0", 0, 99, None)), "class": None}
    RecordedRun.find("one").folder.update(attempts=(ended,))
    assert (history().failures, dict(history().classes)) == (1, {"network": 1})


@pytest.mark.usefixtures("recorded")
def test_kept_times_outlive_the_files_on_the_nodes() -> None:
    run = RecordedRun.find("two")
    whole = timeline(100.0, [FIRST], _steps(), is_queued=False, has_failed=False)
    nothing = timeline(100.0, [], [], is_queued=False, has_failed=False)
    assert best_timeline(run, nothing, None) == nothing
    assert kept_timeline(run.folder) is None
    assert best_timeline(run, whole, None) == whole
    assert best_timeline(run, nothing, None) == whole
    partial = replace(whole, wall_s=whole.wall_s + 9)
    assert best_timeline(run, partial, NodesError([Unreachable("n1", "timeout")], 2)) == whole
    assert kept_timeline(run.folder) == whole


@pytest.mark.usefixtures("recorded")
def test_kept_times_count_in_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    kept = {"wall_s": 500.0, "productive_s": 400.0, "queue_s": 0.0, "lost": {"init": 100.0}, "repeated_steps": 3}
    more = {"failures": 2, "saves": 4, "save_s": 2.0, "training_s": 400.0}
    RecordedRun.find("two").folder.write_stats({**kept, **more, "unknown": 1})
    RecordedRun.find("one").folder.write_stats({"of": "another version"})
    assert app.run(["stats", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["failures"], printed["measured"]["ettr"], printed["measured"]["lost_s"]["init"]) == (3, 0.8, 100.0)
    assert app.run(["stats"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["init", "1m40s", "20.0%"] in rows
    assert any(row[:2] == ["ETTR", "80.0%"] for row in rows)


@pytest.mark.usefixtures("recorded")
def test_run_that_has_not_started_has_no_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["stats", "refused"]) == 2
    assert "has not started" in capsys.readouterr().err
    assert app.run(["stats", "--against", "one"]) == 2
