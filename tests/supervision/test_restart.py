"""The decision to restart a run over SSH, from the last reports of the nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.observation import AgentRecord, Finished, NodeObservation, ReportedExit
from orchestrator.errors import NodeError, NodesError, Unreachable
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan import plan as plans
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import Elastic, Program, RankExit, Request, RunRecord, RunState
from orchestrator.supervision.restart import DirectAttempt, Restarts, recorded_attempts
from orchestrator.verdict.judge import Verdict
from tests.supervision.attempts import StubAttempts

AGENT = AgentRecord(1, 1, 1, "boot", "host", "n0", "3.11", "n0", 0, (0,), 1, "127.0.0.1 1 host", 0.0)


def _failed(**exit_: Any) -> Verdict:  # fields of RankExit
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
        (_failed(code=1), _node(3, 93), (), "not restarted: a rank exited with 93: a retry cannot help"),
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
    restarts = Restarts(RunFolder(tmp_path), 3, StubAttempts())
    attempt = DirectAttempt.of(verdict, [node], (), cut_off)
    assert restarts.reason_against(verdict, attempt) == reason


@pytest.mark.parametrize(
    ("step", "at_any_step", "reason"),
    [
        (7, True, ""),
        (
            7,
            False,
            "not restarted: nothing was saved, and no node was lost; --max-retries N restarts it after any step",
        ),
        (None, True, "not restarted: no rank has reported a step, and no node was lost"),
    ],
)
def test_restart_that_was_requested_for_this_run_needs_a_step_and_no_save(
    tmp_path: Path, step: int | None, *, at_any_step: bool, reason: str
) -> None:
    node = replace(_node(None), progress={} if step is None else {0: {"step": step, "saved": None}})
    restarts = Restarts(RunFolder(tmp_path), 3, StubAttempts(), at_any_step=at_any_step)
    assert restarts.reason_against(_failed(), DirectAttempt.of(_failed(), [node], (), ())) == reason


def test_run_is_not_restarted_by_a_process_that_lacks_a_part_of_the_launch(tmp_path: Path) -> None:
    restarts = Restarts(RunFolder(tmp_path), 3, None, unable="its code cannot be read")
    reason = restarts.reason_against(_failed(), DirectAttempt.of(_failed(), [_node(3)], (), ()))
    assert reason == "not restarted: its code cannot be read"


@pytest.mark.parametrize(
    ("max_retries", "warm", "launched_here", "prepared"),
    [(1, True, True, True), (0, True, True, False), (1, False, True, False), (1, True, False, False)],
)
def test_nodes_prepare_a_restart_if_there_may_be_one(
    tmp_path: Path, *, max_retries: int, warm: bool, launched_here: bool, prepared: bool
) -> None:
    following = StubAttempts() if launched_here else None
    restarts = Restarts(RunFolder(tmp_path), max_retries, following)
    assert restarts.prepared(replace(_plan(tmp_path)[1], warm=warm)) is (following if prepared else None)


def test_last_attempt_is_the_one_after_max_retries(tmp_path: Path) -> None:
    restarts = Restarts(RunFolder(tmp_path), 0, StubAttempts())
    reason = restarts.reason_against(_failed(), DirectAttempt.of(_failed(), [_node(3)], (), ()))
    assert reason == "attempt 1 was the last: max_retries is 0; the newest saved step is 3"


def _plan(
    tmp_path: Path,
    names: Sequence[str] = ("n0", "n1", "s0", "s1"),
    program: Program = Program("executable", ("true",)),  # noqa: B008  frozen
    *,
    is_shared: bool = True,
    **request_fields: Any,
) -> tuple[RunFolder, LaunchPlan]:
    """A run that may use the nodes whose names begin with s as spare nodes."""
    nodes = [Node(name=name, tags=("spare",) if name[0] == "s" else ()) for name in names]
    inventory = Inventory(name="here", nodes=tuple(nodes))
    request = Request("ssh", program, **{"max_retries": 9, **request_fields})
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    folder = RunFolder(tmp_path)
    folder.write(RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
    return folder, replace(plan, is_shared=is_shared)


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
    folder, plan = _plan(tmp_path, is_shared=shared)
    folder.update(slow="n1: rank 1 is slow", slow_nodes=("n1",))
    started = []

    def connect(following: LaunchPlan) -> None:
        assert folder.read().attempt == 1  # log readers follow the nodes of the recorded plan
        if unreachable in {node.name for node in following.nodes}:
            raise NodesError([Unreachable(str(unreachable), "no route")], 2)

    def start(following: LaunchPlan) -> None:
        assert (folder.read().attempt, folder.read_plan().nodes) == (2, following.nodes)
        started.append(following)

    restarts = Restarts(folder, 9, StubAttempts(connect=connect, start=start))
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
    # the finding is about ranks of the ended attempt
    assert (folder.read().slow, folder.read().slow_nodes) == (None, ("n1",))


def test_node_with_the_only_checkpoints_is_not_replaced(tmp_path: Path) -> None:
    folder, plan = _plan(tmp_path, is_shared=False)
    restarts = Restarts(folder, 9, StubAttempts())
    reason = restarts.begin(plan, _failed(), replace(_attempt(), first_failed_node=None, lost=frozenset({"n0"})))
    text = "the checkpoints of rank 0 are on that node alone"
    assert reason == f"not restarted: n0 cannot be reached, and {text}"


def test_restart_does_not_change_the_record_of_a_run_that_has_ended(tmp_path: Path) -> None:
    folder, plan = _plan(tmp_path)
    folder.update(state=RunState.STOPPED)
    assert Restarts(folder, 9, StubAttempts()).begin(plan, _failed(), _attempt()) == ""
    assert (folder.read().state, folder.read().attempt) == (RunState.STOPPED, 1)


def test_record_of_the_next_attempt_is_reported_before_it_starts(tmp_path: Path) -> None:
    """Supervision may find the attempt in another state already."""
    folder, plan = _plan(tmp_path)
    states: list[tuple[RunState, int]] = []

    def on_record(record: RunRecord, _: object) -> None:
        states.append((record.state, record.attempt))

    following = StubAttempts(start=lambda _: folder.update(state=RunState.RUNNING))
    assert Restarts(folder, 9, following).begin(plan, _failed(), _attempt(), on_record) == ""
    assert states == [(RunState.STARTING, 2)]


TRAINER = Program("trainer", ("lr=1e-3", "accumulation=3"))


def test_node_that_had_refused_the_login_is_not_reported_in_the_next_attempt(tmp_path: Path) -> None:
    """It has accepted another login, or is left out; `orch attach` would replace the supervisor that is said to lack a login."""
    folder, plan = _plan(tmp_path)
    folder.update(unsupervised={"n1": "Permission denied"})
    assert Restarts(folder, 9, StubAttempts()).begin(plan, _failed(), _attempt()) == ""
    assert folder.read().attempt == 2
    assert folder.read().unsupervised == {}


def test_elastic_run_continues_on_fewer_nodes_and_on_all_once_they_are_back(tmp_path: Path) -> None:
    """The samples per step of the shared trainer stay the same: 8 x 4 ranks x 3."""
    folder, plan = _plan(tmp_path, ("n0", "n1", "n2", "n3"), TRAINER, elastic=Elastic(1, 4, 8, 3))
    free: set[str] = set()
    restarts = Restarts(folder, 9, StubAttempts(free=free))

    def restart(*lost: str) -> LaunchPlan:
        attempt = replace(_attempt(), first_failed_node=None, lost=frozenset(lost))
        assert restarts.begin(folder.read_plan() if lost != ("n2",) else plan, _failed(), attempt) == ""
        return folder.read_plan()

    without_n2 = restart("n2")
    assert [(node.name, node.node_rank, list(node.ranks)) for node in without_n2.nodes] == [
        ("n0", 0, [0]),
        ("n1", 1, [1]),
        ("n3", 2, [2]),
    ]
    assert (without_n2.node_count, without_n2.world_size) == (3, 3)
    assert without_n2.program.args == ("lr=1e-3", "batch=96", "accumulation=4")
    assert without_n2.restarted.endswith("; it continues on 3 instead of 4 nodes, without n2")
    assert [node.name for node in restart().nodes] == ["n0", "n1", "n3"]  # n2 is still lost
    on_two = restart("n0")
    assert [(node.name, list(node.ranks)) for node in on_two.nodes] == [("n1", [0]), ("n3", [1])]
    assert on_two.program.args == ("lr=1e-3", "batch=96", "accumulation=6")
    free |= {"n0", "n2"}
    on_all = restart()
    assert [(node.name, list(node.ranks)) for node in on_all.nodes] == [
        ("n1", [0]),
        ("n3", [1]),
        ("n2", [2]),
        ("n0", [3]),
    ]
    assert on_all.program.args == ("lr=1e-3", "batch=96", "accumulation=3")
    assert on_all.restarted.endswith("; it continues on 4 instead of 2 nodes, with n[0,2]")
    assert [[node.name for node in on_all.nodes_of(attempt)] for attempt in (1, 2, 4)] == [
        ["n0", "n1", "n2", "n3"],
        ["n0", "n1", "n3"],
        ["n1", "n3"],
    ]
    assert [attempt["decision"] for attempt in folder.read().attempts][-1] == on_all.restarted


def test_another_process_continues_with_the_attempts_of_the_record(tmp_path: Path) -> None:
    """Neither the limits of restarts nor the lost nodes are forgotten."""
    folder, plan = _plan(tmp_path, ("n0", "n1", "n2", "n3"), max_retries=2, elastic=Elastic(1, 4))
    lost = replace(_attempt(), first_failed_node=None, lost=frozenset({"n3"}), broken=frozenset({"n3"}))
    assert Restarts(folder, 2, StubAttempts()).begin(plan, _failed(), lost) == ""
    second = Restarts(folder, 2, StubAttempts(), attempts=recorded_attempts(folder))
    assert second.begin(folder.read_plan(), _failed(node="n1"), _attempt()) == ""
    assert [node.name for node in folder.read_plan().nodes] == ["n0", "n1", "n2"]
    attempts = recorded_attempts(folder)
    assert [(attempt.saved, attempt.lost, attempt.first_failed_node) for attempt in attempts] == [
        (3, {"n3"}, None),
        (3, frozenset(), "n1"),
    ]
    third = Restarts(folder, 2, StubAttempts(), attempts=attempts)
    assert third.reason_against(_failed(), replace(_attempt(), saved=9)).startswith("attempt 3 was the last")


def test_elastic_run_uses_spare_nodes_first_and_sizes_that_divide_the_batch(tmp_path: Path) -> None:
    elastic = Elastic(2, 4, 8, None, 64)
    folder, plan = _plan(tmp_path, ("n0", "n1", "n2", "n3", "s0"), TRAINER, elastic=elastic)
    assert plan.sizes == plans.Sizes((2, 4), 8, 64)
    restarts = Restarts(folder, 9, StubAttempts())
    lost = replace(_attempt(), first_failed_node=None, lost=frozenset({"n3"}))
    assert restarts.begin(plan, _failed(), lost) == ""
    assert [node.name for node in folder.read_plan().nodes] == ["n0", "n1", "n2", "s0"]
    assert folder.read_plan().program == plan.program
    assert restarts.begin(folder.read_plan(), _failed(), replace(lost, lost=frozenset({"n1"}))) == ""
    assert [node.name for node in folder.read_plan().nodes] == ["n0", "n2"]  # three do not divide 64 / 8
    reason = restarts.begin(folder.read_plan(), _failed(), replace(lost, lost=frozenset({"n0", "n2"})))
    text = "no spare node is left; --elastic allows 2, 4 nodes"
    assert reason == f"not restarted: n[0,2] cannot be reached, and {text}"


def test_elastic_run_does_not_lose_the_only_checkpoints(tmp_path: Path) -> None:
    folder, plan = _plan(tmp_path, ("n0", "n1"), elastic=Elastic(1, 2), is_shared=False)
    restarts = Restarts(folder, 9, StubAttempts())
    lost = replace(_attempt(), first_failed_node=None)
    assert restarts.begin(plan, _failed(), replace(lost, lost=frozenset({"n1"}))) == ""
    assert [node.name for node in folder.read_plan().nodes] == ["n0"]
    reason = restarts.begin(folder.read_plan(), _failed(), replace(lost, lost=frozenset({"n0"})))
    assert reason == "not restarted: n0 cannot be reached, and the checkpoints of rank 0 are on that node alone"


def _saved_by_each(lost: str, program: Program, steps: Sequence[int] = (30, 30)) -> DirectAttempt:
    """The ranks of n0 and n1 have each saved a step; then a node was lost."""
    nodes = [replace(_node(None), node=f"n{rank}", progress={rank: {"saved": step}}) for rank, step in enumerate(steps)]
    per_node = program.kind != "trainer"
    return DirectAttempt.of(Verdict(RunState.FAILED, message="gone"), nodes, {lost}, {lost}, saves_per_node=per_node)


@pytest.mark.parametrize(
    ("program", "is_shared", "is_replaced"),
    [
        (Program("executable", ("true",)), False, False),
        (Program("executable", ("true",)), True, True),
        (TRAINER, False, True),  # rank 0 saves for all
    ],
)
@pytest.mark.parametrize("restarted_elsewhere", [False, True])
def test_node_whose_ranks_saved_states_of_their_own_is_not_replaced_by_one_that_would_begin_at_step_0(
    tmp_path: Path, program: Program, *, is_shared: bool, is_replaced: bool, restarted_elsewhere: bool
) -> None:
    folder, plan = _plan(tmp_path, program=program, is_shared=is_shared)
    restarts = Restarts(folder, 9, StubAttempts())
    if restarted_elsewhere:  # by a process that has ended, after states were saved
        kept = replace(_saved_by_each("n1", program), lost=frozenset(), broken=frozenset())
        assert restarts.begin(plan, Verdict(RunState.FAILED), kept) == ""
        restarts = Restarts(folder, 9, StubAttempts(), attempts=recorded_attempts(folder))
        attempt = replace(kept, savers=frozenset(), lost=frozenset({"n1"}))
    else:
        attempt = _saved_by_each("n1", program)
    reason = restarts.begin(folder.read_plan() if restarted_elsewhere else plan, _failed(), attempt)
    assert (reason == "") is is_replaced
    if is_replaced:
        assert [node.name for node in folder.read_plan().nodes] == ["n0", "s0"]
    else:
        assert reason.startswith("not restarted: n1 cannot be reached, and its ranks have saved their own states")


def test_elastic_run_whose_nodes_have_states_of_their_own_shrinks_and_does_not_grow(tmp_path: Path) -> None:
    program = Program("executable", ("true",))
    folder, plan = _plan(tmp_path, ("n0", "n1"), program, elastic=Elastic(1, 2), is_shared=False)
    restarts = Restarts(folder, 9, StubAttempts(free=None))
    assert restarts.begin(plan, _failed(), _saved_by_each("n1", program)) == ""
    attempt = replace(_attempt(), first_failed_node=None)  # n1, which answers again, has the states of step 30 only
    assert restarts.begin(folder.read_plan(), _failed(), replace(attempt, saved=60)) == ""
    assert [node.name for node in folder.read_plan().nodes] == ["n0"]


@pytest.mark.parametrize(("per_node", "saved"), [(False, 30), (True, 20)])
def test_saved_step_on_unshared_folders_is_the_one_that_all_ranks_that_save_have(*, per_node: bool, saved: int) -> None:
    reports: list[dict[str, Any]] = [{"saved": 30}, {"saved": 20}, {"saved": None, "step": 7}, {"step": 9}]
    nodes = [replace(_node(None), node=f"n{rank}", progress={rank: report}) for rank, report in enumerate(reports)]
    attempt = DirectAttempt.of(_failed(), nodes, (), (), saves_per_node=per_node)
    assert attempt.saved == saved
    assert attempt.savers == {"n0", "n1"}


def _attempt() -> DirectAttempt:
    return DirectAttempt.of(_failed(), [_node(3)], (), ())


def test_spare_node_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    folder, plan = _plan(tmp_path, ("n0", "n1", "s0"))

    def start(_: LaunchPlan) -> None:
        raise NodesError([NodeError("s0", "does not share the folder of the run")], 2)

    lost = replace(_attempt(), first_failed_node=None, lost=frozenset({"n1"}))
    reason = Restarts(folder, 9, StubAttempts(start=start)).begin(plan, _failed(), lost)
    text = "s0 cannot take its place: does not share the folder of the run"
    assert reason == f"not restarted: n1 cannot be reached, and {text}"
