"""The overview of a run: one sentence of judgement, and values that are reported, never invented."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.job import JobStatus
from orchestrator.plan.make import make_plan
from orchestrator.portable.findings import Finding, Severity
from orchestrator.run import Failure, Program, Request, RunRecord, RunState
from orchestrator.verdict.health import Known, Observed, PortRate, judged
from orchestrator.verdict.overview import overview, port_rate

if TYPE_CHECKING:
    from orchestrator.node.protocol.agents import MachineBody, PortBody

NOW_S = 1_800_000_000.0
CREATED, ENDED = "2027-01-15T07:58:00+00:00", "2027-01-15T07:59:30+00:00"  # NOW_S is 08:00:00
REPORT = {"step": 93, "steps": 100, "phase": "step", "time": NOW_S - 2, "loss": 2.5, "step_s": 0.5, "saved": 80}
IDLE = Finding(Severity.WARN, "idle-cards", "1 of 2 cards idle", ("n0",))


def record(state: RunState = RunState.RUNNING, **more: Any) -> RunRecord:  # of any field
    made = RunRecord("a-run", "ssh", state, CREATED, {}, {}, {"folder": "/home/me"}, {}, started=True)
    return replace(made, **more)


def node(name: str = "n0", ranks: tuple[int, ...] = (0, 1), **more: Any) -> NodeObservation:  # of any field
    made = NodeObservation(
        name,
        None,
        alive=True,
        same_boot=True,
        finished=None,
        first_failure=None,
        ranks=dict.fromkeys(ranks, "running"),
        progress=dict.fromkeys(ranks, REPORT),
        folder=f"/w/runs/a-run/attempt-1/{name}",
    )
    return replace(made, **more)


def observed(*nodes: NodeObservation) -> tuple[Observed, ...]:
    return tuple(Observed(each, NOW_S) for each in nodes)


def hanging(name: str, ranks: dict[int, tuple[int, bool]]) -> NodeObservation:
    """A node whose ranks make no progress: the collectives that each has enqueued, and whether it loads data."""
    bodies = {
        rank: {
            "pid": 1,
            "state": "S",
            "answers": True,
            "phase": "step",
            "step": 93,
            "call": "my/data.py:7 in read" if loads else "all_reduce",
            "loads_data": loads,
            "groups": {"0": {"enqueued": count, "completed": 9, "waits_for": "all_reduce"}}
            if count > 9
            else {"0": {"enqueued": 9, "completed": 9}},
            "memory": None,
            "stacks": "",
        }
        for rank, (count, loads) in ranks.items()
    }
    hang: Any = {"time": NOW_S - 38, "step_s": 0.5, "ranks": bodies}
    return node(name, tuple(ranks), hang=hang)


STUCK = (hanging("n0", {0: (10, False), 1: (10, False)}), hanging("n1", {2: (10, False), 3: (9, True)}))
FAILED = Failure(FailureClass.CODE, Retry.NEVER, cause="data.bin is missing on n1")


@pytest.mark.parametrize(
    ("known", "health", "verdict"),
    [
        (Known(record(), NOW_S, observed=observed(node())), "healthy", "healthy"),
        (
            Known(record(), NOW_S, observed=observed(node(progress={}))),
            "healthy",
            "running; no step is reported yet",
        ),
        (Known(record(RunState.DONE, ended=ENDED), NOW_S, observed=observed(node())), "over", "done after 1m30s"),
        (Known(record(RunState.STOPPED), NOW_S), "over", "stopped"),
        (
            Known(record(RunState.FAILED, ended=ENDED, failure=FAILED), NOW_S),
            "failing",
            "failed after 1m30s: data.bin is missing on n1",
        ),
        (Known(record(RunState.FAILED, message="rank 1 exited 3"), NOW_S), "failing", "failed: rank 1 exited 3"),
        (Known(record(RunState.LOST), NOW_S), "failing", "lost: cause unknown"),
        (Known(record(RunState.STARTING), NOW_S, is_launching=True), "waiting", "starting: the launch is in progress"),
        (
            Known(record(), NOW_S, waits="attempt 2 begins when n1 answers, at the latest at 03:14:20"),
            "waiting",
            "restarting: attempt 2 begins when n1 answers, at the latest at 03:14:20",
        ),
        (
            Known(
                record(RunState.PENDING),
                NOW_S,
                queue=JobStatus("PENDING", "Priority", explanation="others come first"),
                position="3 of 17",
            ),
            "waiting",
            "queued: Priority: others come first (3 of 17)",
        ),
        (Known(record(RunState.PENDING), NOW_S), "waiting", "queued: its job has not started"),
        (
            Known(record(), NOW_S, queue=JobStatus("SUSPENDED"), observed=observed(*STUCK)),
            "waiting",
            "suspended by Slurm: SUSPENDED",
        ),
        (
            Known(record(failing={"attempt": 1, "message": "rank 1 exited 3"}), NOW_S, observed=observed(node())),
            "failing",
            "attempt 1 failed: rank 1 exited 3",
        ),
        (
            Known(record(), NOW_S, observed=observed(*STUCK)),
            "failing",
            "no progress for 38s: rank 3 on n1 not in all_reduce, for which ranks 0-2 wait: in the data loader, at my/data.py:7 in read (number 10 of group 0)",
        ),
        # one node makes progress
        (Known(record(), NOW_S, observed=observed(STUCK[0], node("n1"))), "healthy", "healthy"),
        (
            Known(
                record(), NOW_S, observed=[Observed(node(), NOW_S - 100, is_current=False)], missing={"n0": "no route"}
            ),
            "failing",
            "unknown: n0 does not answer: no route; the values are 1m40s old",
        ),
        (Known(record(), NOW_S, missing={"n0": "x", "n1": "x"}), "failing", "unknown: n[0-1] do not answer: x"),
        (
            Known(record(), NOW_S, observed=observed(node()), missing={"n1": "no route"}),
            "warning",
            "n1 does not answer: no route",
        ),
        (Known(record(), NOW_S, observed=observed(node()), findings=[IDLE]), "warning", "n0: 1 of 2 cards idle"),
        (
            Known(record(), NOW_S, observed=observed(node()), findings=[IDLE], warnings=["nobody supervises this run"]),
            "warning",
            "n0: 1 of 2 cards idle (and 1 more)",
        ),
        (Known(record(RunState.STARTING), NOW_S), "waiting", "starting: the ranks have not all started"),
        (
            Known(record(), NOW_S, observed=observed(node(progress={0: {"step": 0, "phase": "init"}}))),
            "waiting",
            "starting: the ranks load, no step is done yet",
        ),
    ],
)
def test_verdict_in_one_sentence(known: Known, health: str, verdict: str) -> None:
    assert judged(known, [str(finding) for finding in known.findings]) == (health, verdict)
    assert (overview(known).health, overview(known).verdict) == (health, verdict)


def test_values_of_a_run() -> None:
    cards: Any = {
        "time": NOW_S - 30,
        "cards": [
            {"index": 0, "utilization_percent": 97, "memory_used_mib": 900, "temperature_c": 91},
            {"index": 1, "utilization_percent": 12, "memory_used_mib": 800, "temperature_c": None},
            {"index": 2, "utilization_percent": 0},
        ],
        "expected": 2,
    }
    found = overview(Known(record(), NOW_S, observed=observed(node(cards=cards))))
    assert found.training is not None
    training = found.training
    assert (training.step, training.steps, training.unsaved) == (93, 100, 13)
    values = (found.training_age_s, found.eta_s, found.duration_s, found.folder, found.attempt)
    assert values == (2.0, 1.5, 120.0, "/home/me", 1)  # 7 steps of 0.5 s, 2 s ago
    assert found.cards == (12.0, 97.0)  # the third one is not expected to be busy
    [view] = found.nodes
    assert view.cards is not None
    assert (view.cards.hottest_c, view.cards.memory_mib, view.cards.age_s, len(view.cards.each)) == (91, 900, 30.0, 3)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["training"]["unsaved"] == 13


def test_ranks_behind_in_a_hang_are_counted_and_their_nodes_come_first() -> None:
    found = overview(Known(record(), NOW_S, observed=observed(*STUCK)))
    assert [[rank.behind for rank in view.ranks] for view in found.nodes] == [[0, 0], [0, 1]]
    assert [view.node for view in sorted(found.nodes, key=lambda view: view.spread)] == ["n1", "n0"]


def test_last_known_values_of_a_node_that_is_away_have_an_age_and_unknown_ones_are_empty() -> None:
    away = Observed(node("n1", (2, 3)), NOW_S - 600, is_current=False)
    known = Known(record(), NOW_S, observed=[*observed(node()), away], missing={"n1": "no route", "n2": "no route"})
    views = {view.node: view for view in overview(known).nodes}
    assert (views["n1"].age_s, views["n1"].steps, views["n1"].problem) == (600.0, (93, 93), "no route")
    assert (views["n2"].age_s, views["n2"].steps, views["n2"].problem) == (None, None, "no route")
    assert (views["n0"].age_s, views["n0"].problem) == (None, "")


def test_save_of_an_earlier_attempt_counts_until_this_one_saves() -> None:
    attempts = ({"attempt": 1, "saved": 60, "ended": CREATED, "message": "lost"},)
    found = overview(
        Known(
            record(attempts=attempts, attempt=2),
            NOW_S,
            observed=observed(node(progress={0: {"step": 70, "saved": None}})),
        )
    )
    assert found.training is not None
    assert found.training.unsaved == 10
    assert [moment.text for moment in found.moments] == ["launched", "attempt 1 failed: lost; saved: step 60"]


def test_age_of_a_finding_is_that_of_the_hang_or_of_the_supervisors_event() -> None:
    slow = Finding(Severity.WARN, "slow-rank", "rank 1 is slow")
    hang = Finding(Severity.WARN, "no-progress", "the ranks make no progress")
    events = [{"time": NOW_S - 90, "event": "slow-ranks", "text": "rank 1 is slow"}]
    found = overview(
        Known(record(), NOW_S, observed=observed(*STUCK), findings=[hang, slow, IDLE], events=events)
    ).findings
    assert [each.age_s for each in found] == [38.0, 90.0, None]


@pytest.mark.parametrize(
    ("program", "folder"),
    [
        (Program("trainer", ("steps=1",)), "/w/runs/a-run/checkpoints"),
        (Program("trainer", ("out=runs/a",)), "/w/runs/a-run/code/runs/a"),
        (Program("trainer", ("out=runs/a",), "sub"), "/w/runs/a-run/code/sub/runs/a"),
        (Program("trainer", ("out=/data/a",)), "/data/a"),
        (Program("python", ("train.py",)), None),
    ],
)
def test_folder_of_checkpoints_is_where_the_trainer_writes_them(program: Program, folder: str | None) -> None:
    plan = make_plan(
        Inventory(name="lab", nodes=(Node(name="n0"),)), Request("ssh", program), run_id="a-run", bundle="b"
    )
    assert overview(Known(record(), NOW_S, plan=plan, observed=observed(node()))).checkpoints == folder


def test_traffic_of_ports_is_that_between_two_looks() -> None:
    def machine(at_s: float, received: int, errors: int = 0) -> MachineBody:
        port: PortBody = {"name": "mlx5_0:1", "received": received, "sent": 2 * received, "errors": errors}
        return {
            "monotonic_s": at_s,
            "memory_total": 1,
            "memory_available": 1,
            "disk": None,
            "shm": None,
            "ports": [port],
        }

    assert port_rate(machine(10, 1000), machine(12, 5000, errors=3)) == PortRate(2000, 4000, 3)
    assert port_rate(machine(10, 1000), machine(12, 500)) is None  # the driver was loaded again
    assert port_rate(machine(10, 1000), {**machine(12, 5000), "ports": []}) is None
