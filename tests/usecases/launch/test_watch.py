"""Watching a run to its end, as far as it does not need nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.records.store import Store
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.transports.local import LocalTransport
from orchestrator.usecases.launch.watch import Watch
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.observe import Status

RUN = "here-20260102-030405-0abc"


def test_replicas_that_differ_are_shown_if_the_watch_itself_finds_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs may be read to their ends before the supervisor has polled the node."""
    progress = {
        rank: {"step": 5, "replicas": {"count": 2, "steps": {"5": {"parameters": f"of rank {rank}"}}}}
        for rank in (0, 1)
    }
    node = NodeObservation(
        "n0", None, alive=False, same_boot=True, finished=None, first_failure=None, progress=progress
    )
    inventory = Inventory(name="here", transport="local", nodes=(Node(name="n0", devices=2),))
    plan = make_plan(inventory, Request("ssh", Program("executable", ("true",))), run_id=RUN, bundle="b")
    folder = Store(tmp_path).create(RunRecord(RUN, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
    folder.write_plan(plan)
    warnings: list[str] = []
    viewer: Any = SimpleNamespace(warn=warnings.append, inform=pytest.fail, show=lambda _: None)
    reader: Any = SimpleNamespace(
        plan=plan, unreadable={}, attempt=1, nodes={}, show_remaining=lambda: None, ended=set(), repeated_failures=set()
    )
    status = Status(Verdict(RunState.STOPPED), (node,), None, 1)
    monkeypatch.setattr(Watch, "_last_status", lambda _: status)
    launcher = DirectLauncher(plan, lambda node: LocalTransport(node.name))
    record = Watch(folder, launcher, reader, viewer, ends_failed=True).to_end()
    assert (record.state, warnings) == (RunState.STOPPED, [record.replicas])
    assert "the replicas differ in the parameters after step 5: rank 0 and rank 1" in warnings[0]


def test_supervised_run_is_followed_by_its_record_and_its_nodes_are_left_to_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs end before the record does; without the supervisor, the watch judges the run itself."""
    plan = make_plan(
        Inventory(name="here", transport="local", nodes=(Node(name="n0"),)),
        Request("ssh", Program("executable", ("true",))),
        run_id=RUN,
        bundle="b",
    )
    folder = Store(tmp_path).create(RunRecord(RUN, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
    folder.write_plan(plan)
    observed: list[bool] = []
    reader: Any = SimpleNamespace(
        attempt=1,
        nodes={},
        pending=set(),
        unreadable={},
        ended=set(),
        repeated_failures=set(),
        observe=lambda *, nodes: observed.append(nodes),
        follow=lambda _: None,  # the logs are read to their ends
        show_remaining=lambda: None,
    )
    viewer: Any = SimpleNamespace(inform=pytest.fail, warn=pytest.fail, show=lambda _: None)
    launcher = DirectLauncher(plan, lambda node: LocalTransport(node.name))
    watch = Watch(folder, launcher, reader, viewer, ends_failed=True)

    def record_the_end(_pause_s: float) -> None:
        folder.update(state=RunState.DONE)

    with monkeypatch.context() as patch, folder.supervision() as is_ours:
        assert is_ours
        patch.setattr("orchestrator.usecases.launch.watch.time.sleep", record_the_end)
        assert watch.to_end().state is RunState.DONE
    assert observed == [False]
    folder.update(state=RunState.RUNNING)
    monkeypatch.setattr(Watch, "_confirmed_status", lambda _: Status(Verdict(RunState.DONE), (), None, 1))
    assert watch.to_end().state is RunState.DONE
    assert observed == [False, True]
