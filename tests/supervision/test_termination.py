"""The verdict after the remaining ranks were ended: what they report then counts only if ranks had failed before."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.endpoint.observation import AgentRecord, Finished, NodeObservation
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import NodePlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.supervision import termination
from orchestrator.supervision.supervisor import Supervisor
from orchestrator.transports.local import LocalTransport
from orchestrator.verdict.judge import judge

AGENT = AgentRecord(1, 1, 1, "boot", "host", "n0", "3.11", "n0", 0, (0,), 1, "127.0.0.1 29500 host", 0.0)


def _observed(node: str, finished: Finished | None = None, *, alive: bool = True) -> NodeObservation:
    return NodeObservation(node, AGENT, alive=alive, same_boot=True, finished=finished, first_failure=None)


SUFFERS = _observed("n0", Finished("FAILED", 1.0, None, "n0: rank 0 lost its peer", lost_peer=True))
DEAD = _observed("n0", alive=False)
STOPPED = _observed("n1", Finished("STOPPED", 2.0, None))
HAD_FAILED = _observed("n1", Finished("STOPPED", 2.0, None, lost="rank 1 failed (ValueError: bad)"))


@pytest.mark.parametrize(
    ("first", "after", "message"),
    [
        (SUFFERS, HAD_FAILED, "n1: rank 1 failed (ValueError: bad)"),
        (SUFFERS, STOPPED, "n0: rank 0 lost its peer"),
        (DEAD, STOPPED, "the agent of n0 died without a last event"),
    ],
)
def test_verdict_after_the_end_names_the_first_failure_and_no_stop_of_orch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: NodeObservation, after: NodeObservation, message: str
) -> None:
    inventory = Inventory(name="here", nodes=(Node(name="n0"), Node(name="n1")))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    folder = RunFolder(tmp_path)
    folder.write(RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
    folder.write_plan(plan)
    supervisor = Supervisor(folder, DirectLauncher(plan, lambda node: LocalTransport(node.name)))
    end_of_attempt, states = supervisor._termination, supervisor._states
    states["n0"].observation, states["n1"].observation = first, _observed("n1")

    def stop(_launcher: DirectLauncher, node: NodePlan) -> list[str]:
        if node.name == "n1":
            states["n1"].observation = after
        return []

    monkeypatch.setattr(end_of_attempt, "stop", stop)
    monkeypatch.setattr(termination, "explain_by_nodes", lambda verdict, *_: verdict)
    monkeypatch.setattr(termination, "with_last_lines", lambda verdict, *_: verdict)
    verdict = judge(plan, [first, _observed("n1")], None)
    assert end_of_attempt.end(verdict).verdict.message == message
