"""Which run `orch stop` without RUN ends."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import app
from orchestrator.errors import LaunchError, RunLost, RunNotFound, UsageError
from orchestrator.records.runs import choice_among, find_newest, find_run
from orchestrator.records.store import Store
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.launch.sweep import stop_all
from orchestrator.usecases.runs import stop
from orchestrator.usecases.runs.stop import MOST_LISTED, run_to_stop
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.observe import Status

UNKNOWN: dict[str, Any] = {"request": {}, "inventory": {}, "code": {}, "versions": {}}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that the commands use."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    return Store(tmp_path)


def _add(store: Store, second: int, state: RunState, sweep: str | None = None) -> str:
    run_id = f"a-20260102-0304{second:02d}-0abc"
    store.create(RunRecord(run_id, "ssh", state, "2026-01-02T03:04:05+00:00", sweep=sweep, **UNKNOWN))
    return run_id


def test_only_unended_run_is_stopped_or_the_newest_if_all_have_ended(store: Store) -> None:
    _add(store, 1, RunState.DONE)
    newest = _add(store, 3, RunState.LOST)
    assert run_to_stop(None).path.name == newest
    running = _add(store, 2, RunState.RUNNING)
    assert run_to_stop(None).path.name == running


def test_several_unended_runs_are_listed_newest_first_and_a_sweep_in_one_line(store: Store) -> None:
    runs = [_add(store, second, RunState.RUNNING) for second in range(MOST_LISTED + 2)]
    for second in range(40, 50):
        _add(store, second, RunState.PENDING, sweep="a-20260102-030440-0000")
    with pytest.raises(UsageError) as caught:
        run_to_stop(None)
    first, newest, *lines = str(caught.value).splitlines()
    assert first == f"{MOST_LISTED + 12} runs have not ended, so name the one to end:"
    assert newest == f"  orch stop {runs[-1]}   RUNNING, nodes unknown, started 2026-01-02 03:04:05 UTC"
    assert lines[-1] == "  and 3 more, see orch list"
    assert len(lines) == MOST_LISTED


def test_of_several_runs_of_a_name_the_one_that_has_not_ended_is_stopped(store: Store) -> None:
    running = _add(store, 1, RunState.RUNNING)
    _add(store, 2, RunState.LOST)
    _add(store, 3, RunState.DONE)
    assert run_to_stop("a").path.name == find_run("a").path.name == running
    assert (
        choice_among("a")
        == f"this is {running}, which has not ended; the newest run called a is a-20260102-030403-0abc"
    )
    assert find_newest("a").path.name == "a-20260102-030403-0abc"


def test_lost_run_of_a_name_is_stopped_before_one_that_has_ended(store: Store) -> None:
    lost = _add(store, 1, RunState.LOST)
    _add(store, 2, RunState.DONE)
    assert run_to_stop("a").path.name == lost
    assert find_run("a").path.name == "a-20260102-030402-0abc", "to read, the newest"


def test_several_unended_runs_of_a_name_are_listed_and_none_is_stopped(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [_add(store, second, RunState.RUNNING) for second in (1, 2)]
    for second in (3, 4):
        _add(store, second, RunState.PENDING, sweep="a-20260102-030440-0000")
    assert app.run(["stop", "a"]) == 2
    stderr = capsys.readouterr().err
    assert "4 runs called a have not ended, so name the one to end:" in stderr
    assert [line.split("   ")[0] for line in stderr.splitlines() if line.startswith("  orch stop")] == [
        f"  orch stop {name}" for name in (runs[1], runs[0], "a-20260102-030440-0000")
    ]
    assert choice_among("a") == "4 runs called a have not ended; this is the newest, a-20260102-030404-0abc"
    assert not any(store.find(run).is_stop_requested() for run in runs)


@pytest.mark.parametrize(("answer", "index"), [("2", 0), ("1", 1), ("", None), ("yes", None)])
def test_stop_prompts_for_one_of_several_runs_at_a_terminal(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str, index: int | None
) -> None:
    runs = [_add(store, second, RunState.RUNNING) for second in (1, 2)]
    leader, terminal = os.openpty()
    os.write(leader, f"{answer}\n".encode())
    with os.fdopen(leader, "rb"), os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        code = app.run(["stop", "a"])
    stderr = capsys.readouterr().err
    assert f"1  {runs[1]}   RUNNING" in stderr
    stopped = [run for run in runs if store.find(run).is_stop_requested()]
    assert stopped == ([] if index is None else [runs[index]])
    assert index is not None or (code == 2 and "nothing is ended" in stderr)


def test_all_unended_runs_are_stopped_and_those_that_fail_are_named(store: Store) -> None:
    _add(store, 1, RunState.DONE)
    runs = [_add(store, 2, RunState.RUNNING), _add(store, 3, RunState.STARTING)]
    swept = _add(store, 4, RunState.PENDING, sweep="a-20260102-030440-0000")
    with pytest.raises(LaunchError) as caught:  # none of them has a plan
        stop_all(lambda _: None)
    named = [line.partition("/plan/plan.json cannot be read")[0] for line in str(caught.value).splitlines()]
    assert named == [str(store.runs / run) for run in (*runs, swept)]


def test_all_and_the_name_of_a_run_are_refused_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["stop", "--all", "latest"]) == 2
    assert "RUN and -i cannot be given with it" in capsys.readouterr().err


def test_stop_waits_for_the_owner_that_prepares_another_attempt(store: Store) -> None:
    """The plan of an attempt that has not started would be found without any process, and the owner would start it then."""
    folder = store.find(_add(store, 1, RunState.STARTING))
    assert not stop._is_restarting(folder)  # the restart of an owner cannot be timed
    folder.update(attempt=2, started=True)
    assert not stop._is_restarting(folder)
    with folder.supervision():
        assert stop._is_restarting(folder)
        owner = threading.Timer(0.2, lambda: folder.update(state=RunState.STOPPED))
        owner.start()
        assert stop._wait_for_restart(folder).state is RunState.STOPPED
        owner.join()


def test_attempt_that_its_owner_never_started_is_stopped_and_not_lost(store: Store) -> None:
    record = store.find(_add(store, 1, RunState.RUNNING)).update(attempt=2, started=True)
    status = Status(Verdict(RunState.LOST, message="no trace of the run on n0"), (), None, record.attempt)
    assert stop._verdict(record, status, may_be_lost=False).state is RunState.STOPPED
    with pytest.raises(RunLost):
        stop._verdict(record, status, may_be_lost=True)


def test_failed_launch_whose_processes_were_stopped_needs_no_login(store: Store) -> None:
    """Without a plan, the nodes are not even known; those of a run that is LOST may have processes."""
    folder = store.find(_add(store, 1, RunState.FAILED))
    assert stop.stop(folder, lambda _: None).state is RunState.FAILED
    for state, started in ((RunState.FAILED, True), (RunState.LOST, False)):
        folder.update(state=state, started=started)
        with pytest.raises(RunNotFound, match="plan"):
            stop.stop(folder, lambda _: None)
