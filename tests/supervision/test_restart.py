"""The decision to restart a run over SSH, from the last reports of the nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.replies import AgentRecord, Finished, NodeObservation, ReportedExit
from orchestrator.errors import NodesError, Unreachable
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan import plan as plans
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Program, RankExit, Request, RunRecord, RunState
from orchestrator.store import RunFolder
from orchestrator.supervision.restart import DirectAttempt, Restarts
from orchestrator.verdict.judge import Verdict

AGENT = AgentRecord(1, 1, 1, "boot", "host", "n0", "3.11", "n0", 0, (0,), 1, "127.0.0.1 1 host", 0.0)


def _failed(**exit_: Any) -> Verdict:  # noqa: ANN401  fields of RankExit
    return Verdict(
        RunState.FAILED, RankExit(**{"node": "n0", "rank": 0, "code": 7, "signal": None, **exit_}), "it failed"
    )


def _node(saved: int | None, code: int | None = 7, *, has_exit: bool = True) -> NodeObservation:
    """A node whose agent has ended, by the exit of a rank or by itself."""
    exit_ = ReportedExit(0, code, None, None)
    finished = Finished("FAILED", 1.0, exit_ if has_exit else None)
    progress = {} if saved is None else {0: {"saved": saved}}
    return NodeObservation(
        "n0",
        AGENT,
        alive=False,
        same_boot=True,
        finished=finished,
        first_failure=exit_ if has_exit else None,
        ranks={0: "exited"},
        progress=progress,
    )


@pytest.mark.parametrize(
    ("verdict", "node", "cut_off", "reason"),
    [
        (_failed(), _node(3), (), ""),
        (_failed(code=99), _node(None, 99), (), ""),
        (_failed(), _node(None), (), "not restarted: nothing was saved, and no node was lost"),
        (_failed(), _node(None), ("n1",), ""),
        (Verdict(RunState.FAILED, message="killed"), _node(None, has_exit=False), (), ""),
        (_failed(code=93), _node(3, 93), (), "not restarted: a rank exited with 93: a retry cannot help"),
        (_failed(kind="memory"), _node(3), (), "not restarted: memory was exhausted, and would be again"),
        (
            _failed(lines=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",)),
            _node(3),
            (),
            "not restarted: memory was exhausted, and would be again",
        ),
    ],
)
def test_run_is_restarted_if_that_may_help(
    tmp_path: Path, verdict: Verdict, node: NodeObservation, cut_off: tuple[str, ...], reason: str
) -> None:
    restarts = Restarts(RunFolder(tmp_path), 3, lambda plan, _: plan, lambda: True)
    attempt = DirectAttempt.of(verdict, [node], (), cut_off)
    assert restarts.reason_against(verdict, attempt) == reason


def test_run_is_restarted_by_the_process_that_launched_it_alone(tmp_path: Path) -> None:
    restarts = Restarts(RunFolder(tmp_path), 3, None, lambda: False)
    reason = restarts.reason_against(_failed(), DirectAttempt.of(_failed(), [_node(3)], (), ()))
    assert reason == "not restarted: only the process that launched the run knows its environment, and it has ended"


def test_last_attempt_is_the_one_after_max_retries(tmp_path: Path) -> None:
    restarts = Restarts(RunFolder(tmp_path), 0, lambda plan, _: plan, lambda: True)
    reason = restarts.reason_against(_failed(), DirectAttempt.of(_failed(), [_node(3)], (), ()))
    assert reason == "attempt 1 was the last: max_retries is 0; the newest saved step is 3"


def _plan(tmp_path: Path) -> tuple[RunFolder, LaunchPlan]:
    """A run on n0 and n1 that may use the spare nodes s0 and s1."""
    nodes = [Node(name=name, tags=("spare",) if name[0] == "s" else ()) for name in ("n0", "n1", "s0", "s1")]
    inventory = Inventory(name="here", nodes=tuple(nodes))
    request = Request("ssh", Program("executable", ("true",)), max_retries=9)
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    folder = RunFolder(tmp_path)
    folder.write(RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
    return folder, plan


@pytest.mark.parametrize(
    ("shared", "failed", "lost", "unreachable", "nodes"),
    [
        (True, "n1", None, None, ["n0", "s0"]),
        (True, "n0", None, None, ["s0", "n1"]),
        (True, "n1", "n0", "s0", ["s1", "n1"]),
        (False, "n1", None, None, ["n0", "n1"]),
        (False, None, "n1", None, ["n0", "s0"]),
    ],
)
def test_spare_node_takes_the_ranks_of_the_node_that_it_replaces(
    tmp_path: Path, *, shared: bool, failed: str | None, lost: str | None, unreachable: str | None, nodes: list[str]
) -> None:
    folder, plan = _plan(tmp_path)
    started = []

    def start(following: LaunchPlan, on_connected: Callable[[], None]) -> LaunchPlan:
        assert folder.read().attempt == 1  # log readers follow the nodes of the recorded plan
        if unreachable in {node.name for node in following.nodes}:
            raise NodesError([Unreachable(str(unreachable), "no route")], 2)
        on_connected()
        assert (folder.read().attempt, folder.read_plan().nodes) == (2, following.nodes)
        started.append(following)
        return following

    restarts = Restarts(folder, 9, start, lambda: shared)
    attempt = replace(
        _attempt(),
        first_failed_node=failed if lost is None else None,
        lost=frozenset() if lost is None else frozenset({lost}),
    )
    assert restarts.begin(plan, _failed(), attempt) == ""
    [following] = started
    assert [(node.name, node.node_rank, node.ranks) for node in following.nodes] == [
        (name, rank, range(rank, rank + 1)) for rank, name in enumerate(nodes)
    ]
    assert plans.from_json(json.loads(json.dumps(plans.to_json(following)))).nodes_of(1) == plan.nodes
    assert len(folder.read().attempts) == 1


def test_node_with_the_only_checkpoints_is_not_replaced(tmp_path: Path) -> None:
    folder, plan = _plan(tmp_path)
    restarts = Restarts(folder, 9, lambda plan, _: plan, lambda: False)
    reason = restarts.begin(plan, _failed(), replace(_attempt(), first_failed_node=None, lost=frozenset({"n0"})))
    text = "the checkpoints of rank 0 are on that node alone"
    assert reason == f"not restarted: n0 cannot be reached, and {text}"


def _attempt() -> DirectAttempt:
    return DirectAttempt.of(_failed(), [_node(3)], (), ())
