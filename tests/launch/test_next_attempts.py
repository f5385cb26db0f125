"""The start of another attempt by the process that has launched the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.code.bundle import Bundle
from orchestrator.endpoint.access import Destination
from orchestrator.errors import LaunchError, NodesError, Unreachable
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launch.planned import Planned
from orchestrator.launch.start import NextAttempts
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import Facts
from orchestrator.records.store import Store
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.supervision.restart import DirectAttempt, Restarts
from orchestrator.transports.local import LocalTransport
from orchestrator.verdict.judge import Verdict


class FailingLauncher(DirectLauncher):
    """Fails to start an agent, and cannot end another one."""

    def push(self, plan: LaunchPlan, bundle: Bundle) -> Facts:
        return Facts()

    def start(self, plan: LaunchPlan, bundle: Bundle) -> None:
        raise NodesError([Unreachable("s0", "no route")], 2)

    def undo(self) -> list[str]:
        return ["s0: no route"]


@pytest.mark.parametrize(("stopped", "cause"), [(False, "s0: no route"), (True, "the run was stopped")])
def test_node_whose_agent_may_run_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stopped: bool, cause: str
) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    inventory = Inventory(name="here", nodes=(Node(name="s0"),))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    record = RunRecord(plan.run_id, "ssh", RunState.STARTING, "", {}, {"digest": "d"}, {}, {})
    folder = Store(tmp_path).create(record)
    if stopped:
        folder.request_stop()
    planned = Planned(plan, cast("Any", None), record, (), (), cast("Any", None), {})
    launcher = FailingLauncher(plan, lambda node: LocalTransport(node.name))
    with pytest.raises(LaunchError) as caught:
        NextAttempts(planned, folder, launcher, pytest.fail).start(plan)
    first, *rest = str(caught.value).splitlines()
    assert cause in first
    assert [line.strip() for line in rest][-2:] == ["not everything could be stopped:", "s0: no route"]


def test_run_that_is_stopped_while_the_next_attempt_connects_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the nodes are connected, `orch stop` finds a run without processes, and records the end itself."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    inventory = Inventory(name="here", nodes=(Node(name="n0"),))
    request = Request("ssh", Program("executable", ("true",)), max_retries=1)
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    record = RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True)
    folder = Store(tmp_path).create(record)
    launcher = DirectLauncher(plan, lambda node: LocalTransport(node.name))
    monkeypatch.setattr(launcher, "connect", lambda _: folder.update(state=RunState.STOPPED))
    following = NextAttempts(Planned(plan, *cast("Any", [None] * 7)), folder, launcher, pytest.fail)
    verdict = Verdict(RunState.FAILED, message="rank 0 failed")
    attempt = DirectAttempt.of(verdict, [], (), ())
    reason = Restarts(folder, 1, following).begin(plan, verdict, attempt)
    assert reason == "attempt 2 could not be started: the run was stopped"
    ended = folder.read()
    assert (ended.state, ended.attempt, ended.attempts) == (RunState.STOPPED, 1, ())


def test_attempt_whose_node_cannot_be_reached_is_not_shown_to_log_readers() -> None:
    """They share the launcher's plans, and would follow the wrong nodes once another spare node is chosen."""
    inventory = Inventory(name="here", nodes=(Node(name="n0"), Node(name="s0", tags=("spare",))))
    request = Request("ssh", Program("executable", ("true",)), max_retries=1)
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")

    def unreachable(node: Destination) -> LocalTransport:
        raise Unreachable(node.name, "no route")

    launcher = DirectLauncher(plan, unreachable)
    following = replace(plan, attempt=2, nodes=plan.spares, spares=(), replaced=plan.nodes, earlier=(("n0",),))
    planned = Planned(plan, *cast("Any", [None] * 7))
    with pytest.raises(NodesError):
        NextAttempts(planned, cast("Any", None), launcher, pytest.fail).connect(following)
    assert launcher.attempt() == 1
