"""The thread that stops a rung of a ladder once every rank has made the steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import LaunchError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.records.runs import home_store
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.usecases.trials import ladder
from orchestrator.usecases.trials.ladder import End, LadderOptions, StepLimit
from tests.until import until

RUN = "ladder-20260102-030405-0abc"


def _reported(steps: Mapping[int, int]) -> NodeObservation:
    """The node with the ranks that it has started, and their steps."""
    return NodeObservation(
        "n0",
        None,
        alive=True,
        same_boot=True,
        finished=None,
        first_failure=None,
        ranks=dict.fromkeys(steps, "running"),
        progress={rank: {"step": step} for rank, step in steps.items()},
    )


def _watched(
    monkeypatch: pytest.MonkeyPatch, home: Path, *reports: NodeObservation | Exception
) -> tuple[StepLimit, list[str]]:
    """The limit of a run of two ranks, once it has stopped the run after these reports, and its messages."""
    monkeypatch.setenv("ORCH_HOME", str(home))
    request = Request("ssh", Program("executable", ("train",)))
    inventory = Inventory(name="here", transport="local", nodes=(Node(name="n0", devices=2),))
    record = RunRecord(RUN, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True)
    home_store().create(record).write_plan(make_plan(inventory, request, run_id=RUN, bundle="b"))
    waiting, messages, stopped = list(reports), list[str](), list[str]()

    def observe(*_: object) -> SimpleNamespace:
        report = waiting.pop(0)
        if isinstance(report, Exception):
            raise report
        return SimpleNamespace(nodes=(report,))

    monkeypatch.setattr(ladder, "POLL_S", 0.01)
    monkeypatch.setattr(ladder, "observe_reachable", observe)
    monkeypatch.setattr(ladder, "stop", lambda folder, _: stopped.append(folder.path.name))
    with StepLimit(RUN, LadderOptions(5, 60.0), messages.append, must_report=False) as limit:
        until(lambda: stopped, deadline_s=30.0, awaited="the stop of the run")
    assert (stopped, waiting) == ([RUN], [])
    return limit, messages


def test_rank_that_has_not_started_has_not_made_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may have reported its steps before the agent of a busy node has started rank 1."""
    limit, _ = _watched(monkeypatch, tmp_path, _reported({0: 7}), _reported({0: 8, 1: 5}))
    assert (limit.end, limit.steps) == (End.STEPS, {0: 8, 1: 5})


@pytest.mark.parametrize("failure", [LaunchError("squeue: no answer"), RuntimeError("can't start new thread")])
def test_failure_to_observe_is_reported_and_does_not_end_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Else a program that does not end by itself would run until somebody stops it."""
    limit, messages = _watched(monkeypatch, tmp_path, failure, failure, _reported({0: 5, 1: 5}))
    assert limit.end is End.STEPS
    assert messages == [f"the ranks cannot be observed: {failure}"]
