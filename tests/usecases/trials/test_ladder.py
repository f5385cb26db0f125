"""The debug ladder: which rungs it has, when a rung has passed, and how it ends at the first that fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request, RunRecord, RunState, Shape
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.trials.ladder import (
    End,
    Ladder,
    LadderOptions,
    RungKind,
    as_short_jobs,
    as_trial,
    outcome_of,
    reported_steps,
    rungs_of,
)
from tests.grounds.ladders import FAILS_ON_TWO_NODES, assert_third_rung_failed, orch_here

OPTIONS = LadderOptions(5, 120.0)
ARGUMENTS = LaunchArguments("ssh", "i.yaml", "n[0-3]", None, config=None, settings=("steps=900",), program=None)


def _ladder(*devices: int, shape: Shape | None = None, arguments: LaunchArguments = ARGUMENTS) -> Ladder:
    nodes = tuple(Node(name=f"n{number}", devices=count) for number, count in enumerate(devices))
    request = Request("ssh", Program("trainer", ()), shape=shape)
    inventory = Inventory(name="demo", nodes=nodes, file="demo.yaml")
    return Ladder(arguments, OPTIONS, rungs_of(make_plan(inventory, request, run_id="r", bundle="b")), ())


def _rungs_through_slurm(*first: str, nodes: str | None = None, shape: Shape | None = None) -> list[tuple[str, str]]:
    """Text and -j of each rung, of an inventory of four nodes of two devices."""
    inventory = Inventory(name="demo", nodes=tuple(Node(name=f"n{number}", devices=2) for number in range(4)), file="f")
    request = Request("slurm", Program("trainer", ()), nodes=nodes, shape=shape)
    plan = make_plan(inventory, request, run_id="r", bundle="b", home="/home")
    return [(str(rung), rung.shape) for rung in rungs_of(plan, first)]


def test_rungs_through_slurm_have_numbers_of_nodes_unless_they_are_named() -> None:
    assert _rungs_through_slurm(shape=Shape(3, 2)) == [
        ("1 rank on 1 node", "1x1"),
        ("2 ranks on 1 node", "1x2"),
        ("4 ranks on 2 nodes", "2x2"),
        ("6 ranks on 3 nodes", "3x2"),
    ]
    assert [text for text, _ in _rungs_through_slurm("n2", shape=Shape(3, 2))] == [
        "1 rank on n2",
        "2 ranks on n2",
        "4 ranks on 2 nodes",
        "6 ranks on 3 nodes",
    ]
    assert [text for text, _ in _rungs_through_slurm("n2", nodes="n1,n2")] == [
        "1 rank on n2",
        "2 ranks on n2",
        "4 ranks on n[1-2]",
    ]


@pytest.mark.parametrize(("time", "minutes"), [("1-00:00:00", "12"), ("5", "5"), ("UNLIMITED", "12"), (None, "12")])
def test_job_of_a_rung_is_short_and_runs_once(time: str | None, minutes: str) -> None:
    inventory = Inventory.model_validate({"name": "demo", "nodes": [{"name": "n0"}], "slurm": {"time": time}})
    given = replace(ARGUMENTS, launcher="slurm", slurm=(("--qos", "slurm.qos=q"), ("--time", "slurm.time=9"), ("--set", "slurm.requeue=auto")))  # fmt: skip
    plan = make_plan(inventory, Request("slurm", Program("trainer", ())), run_id="r", bundle="b", home="/home")
    words = [word for _, word in as_short_jobs(as_trial(given), plan, OPTIONS).slurm]
    assert sorted(words) == [
        "slurm.max_retries=0",
        "slurm.qos=q",
        "slurm.requeue=never",
        "slurm.spare_nodes=0",
        f"slurm.time={minutes}",
    ]
    step = replace(ARGUMENTS, launcher="slurm", here=True)  # has no options of a job
    assert as_short_jobs(as_trial(step), plan, OPTIONS) == replace(step, is_trial=True)


def _record(state: RunState) -> RunRecord:
    return RunRecord("r", "ssh", state, "", {}, {}, {}, {})


@pytest.mark.parametrize(
    ("devices", "rungs"),
    [
        ((8,) * 4, ["1 rank on n0", "2 ranks on n0", "8 ranks on n0", "16 ranks on n[0-1]", "32 ranks on n[0-3]"]),
        ((2, 2), ["1 rank on n0", "2 ranks on n0", "4 ranks on n[0-1]"]),
        ((1, 1, 1), ["1 rank on n0", "2 ranks on n[0-1]", "3 ranks on n[0-2]"]),
        ((4, 8), ["1 rank on n0", "2 ranks on n0", "4 ranks on n0", "12 ranks on n[0-1]"]),
        ((1,), ["1 rank on n0"]),
    ],
)
def test_each_rung_has_more_ranks_and_the_last_is_the_whole_launch(devices: tuple[int, ...], rungs: list[str]) -> None:
    assert [str(rung) for rung in _ladder(*devices).rungs] == rungs


def test_launch_of_a_rung_keeps_the_options_and_never_the_checkpoints_of_the_training() -> None:
    ladder = _ladder(8, 8, 8)
    first, second, full, two, all_ = map(ladder.arguments_of, ladder.rungs)
    assert [(rung.nodes, rung.shape) for rung in (first, second, full, two, all_)] == [
        ("n0", "1x1"),
        ("n0", "1x2"),
        ("n0", None),
        ("n0,n1", None),
        ("n0,n1,n2", None),
    ]
    assert {*first.settings[1:]} >= {"steps=5", "resume=none", "out=ladder-checkpoints", "report="}
    assert first.settings[0] == "steps=900"  # the later one counts
    assert first.debug
    assert (first.name, two.note) == ("ladder", "rung 4 of 5 of a ladder: 16 ranks on n[0-1]")


def test_shape_of_the_launch_is_the_shape_of_its_rungs() -> None:
    typed = LaunchArguments("ssh", "i.yaml", None, "3x4", config=None, settings=(), program=("a.py",), name="mine")
    ladder = _ladder(8, 8, 8, shape=Shape(3, 4), arguments=typed)
    launches = [ladder.arguments_of(rung) for rung in ladder.rungs]
    assert [launch.shape for launch in launches] == ["1x1", "1x2", "1x4", "2x4", "3x4"]
    assert {(launch.settings, launch.name) for launch in launches} == {((), "mine")}


@pytest.mark.parametrize(
    ("state", "end", "steps", "code", "text"),
    [
        (RunState.DONE, None, {}, 0, "ended with exit code 0"),
        (RunState.DONE, End.BEHIND, {0: 1}, 0, "ended with exit code 0"),
        (RunState.STOPPED, End.STEPS, {0: 7, 1: 5}, 0, "all ranks made 5 steps"),
        (RunState.STOPPED, End.NO_STEPS, {}, 0, "ran 2m00s without a failure; the program reports no steps"),
        (
            RunState.STOPPED,
            End.BEHIND,
            {0: 3, 1: 1},
            1,
            "not all ranks made 5 steps in 2m00s, so the run was stopped: ",
        ),
        (RunState.STOPPED, End.UNOBSERVED, {}, 1, "the ranks could not be observed in 2m00s: not all nodes answered"),
        (RunState.STOPPED, None, {}, 6, "run r is STOPPED"),
        (RunState.FAILED, End.STEPS, {0: 5}, 1, "run r is FAILED"),
    ],
)
def test_outcome_of_a_rung(state: RunState, end: End | None, steps: dict[int, int], code: int, text: str) -> None:
    outcome = outcome_of(_record(state), OPTIONS, end, steps)
    assert outcome.exit_code == code
    assert outcome.text.startswith(text)
    assert "rank 1 reported step 1 last" in outcome.text or end is not End.BEHIND or state is RunState.DONE


def test_every_rung_names_a_suspect_and_a_proof() -> None:
    assert len({text for kind in RungKind for text in (kind.suspects, kind.proof)}) == 2 * len(RungKind)
    assert reported_steps([]) == {}


@pytest.mark.processes
def test_ladder_stops_at_the_first_rung_that_fails_with_its_diagnosis(tmp_path: Path) -> None:
    """The program never ends by itself on one node, and fails on two. Its replicas differ, which every run shows."""
    hook = {"on": ["STARTING", "RUNNING", "STOPPED", "FAILED"], "command": ["touch", f"{tmp_path}/.work/hook"]}
    orch = orch_here(tmp_path, FAILS_ON_TWO_NODES, hook=hook, devices=2)
    done = orch("ladder", "--limit", "90s", "--", "sh", "train.sh", code=1)
    lines = done.stdout.splitlines()
    assert_third_rung_failed(lines, "n0", "n[0-1]")
    assert lines[-1].startswith("examine     the network between the nodes")
    assert not (tmp_path / ".work/hook").exists()
    states = [(record["state"], record["request"]["debug"]) for record in orch.records()]
    assert states == [("STOPPED", True), ("STOPPED", True), ("FAILED", True)]
    differ = "the replicas differ in the parameters after step 5: rank 0 and rank 1; no majority"
    assert f"warning: {differ}" in done.stderr
    assert [str(record["replicas"])[: len(differ)] for record in orch.records()] == ["None", differ, "None"]
