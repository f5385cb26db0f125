"""Which remedies orch can prove, the changes that it makes for that, and what the trials show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.change import CHANGED_CALLS, call, unset, variables
from orchestrator.diagnosis.rank_causes import Diagnosis
from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.usecases.diagnose.log_files import Diagnosed
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.trials.ladder import Ladder, LadderOptions, Outcome, rungs_of
from orchestrator.usecases.trials.prove import (
    Planned,
    Proof,
    Result,
    Trial,
    changed_arguments,
    plan_proof,
    provable,
    prove,
)
from tests.grounds.ladders import NEEDS_AN_INTERFACE, orch_here

CHANGEABLE = [row for row in CATALOGUE.values() if row.change is not None]
ARGUMENTS = LaunchArguments("ssh", "i.yaml", None, None, config=None, settings=(), program=("train.py",))
PASSED, FAILED = Outcome("passed"), Outcome("failed", 1)
UNUSED = CATALOGUE["ddp-unused-parameters"]
IFNAME = CATALOGUE["gloo-no-interface"]


def _plan(
    kind: Literal["trainer", "python", "executable"] = "python",
    *,
    bare: bool = False,
    env: dict[str, str] | None = None,
) -> LaunchPlan:
    nodes = tuple(Node(name=f"n{number}", devices=2, env=env or {}) for number in range(3))
    request = Request("ssh", Program(kind, ("train.py",), bare=bare))
    return make_plan(Inventory(name="demo", nodes=nodes, file="i.yaml"), request, run_id="r", bundle="b")


def _diagnosed(signature: str | None) -> Diagnosed:
    row = CATALOGUE.get(signature or "")
    diagnosis = Diagnosis(cause="why", signature=signature, kind=row.kind, remedy=row.remedy) if row else Diagnosis()
    return Diagnosed(diagnosis, (), 0, run="r", state="FAILED")


def _record(state: RunState = RunState.FAILED) -> RunRecord:
    return RunRecord("r", "ssh", state, "2026-01-01T00:00:00+00:00", {}, {}, {}, {})


@pytest.mark.parametrize(
    ("signature", "record", "message", "hint"),
    [
        ("ddp-unused-parameters", _record(RunState.RUNNING), "has not ended", "orch stop r"),
        ("ddp-unused-parameters", _record(RunState.DONE), "has not failed", "without --prove"),
        (None, _record(), "the cause of r is unknown", "orch diagnose r"),
        ("cgroup-oom", _record(), "would again: it is not run unchanged", "raise the limit"),
        ("cuda-oom", _record(), "would again: it is not run unchanged", "a smaller batch"),
        ("file-not-found", _record(), "orch cannot make the change", "copy it to every node"),
    ],
)
def test_remedy_that_cannot_be_proved_is_refused_with_what_a_person_must_do(
    signature: str | None, record: RunRecord, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        provable(_diagnosed(signature), record, CATALOGUE)
    assert hint in refused.value.hint


def test_log_of_another_launcher_is_refused() -> None:
    with pytest.raises(UsageError, match="--prove needs a run"):
        plan_proof(["logs/train.log"], None)


def test_no_signature_of_exhausted_memory_has_a_change_and_every_change_is_in_a_remedy() -> None:
    assert len(CHANGEABLE) >= 8
    assert [row.id for row in CHANGEABLE if row.kind.value == "memory"] == []
    for row in CHANGEABLE:
        assert row.change is not None
        words = [*row.change.variables, *(row.change.call.arguments if row.change.call else ())]
        remedy = " ".join(row.remedy)
        assert any(word in remedy for word in words) or row.id in ("nccl-not-built-in", "unknown-backend", "shm-full", "ds-batch-sizes", "ds-no-batch-size")  # fmt: skip


@pytest.mark.parametrize("row", CHANGEABLE, ids=lambda row: row.id)
def test_change_of_every_signature_reaches_the_ranks(row: Any) -> None:  # a Signature
    inventory = {"OTHER": "1", **dict.fromkeys(row.change.variables, "9")}
    changed = changed_arguments(ARGUMENTS, row.change, _plan(env=inventory))
    request = Request("ssh", Program("python", ("train.py",)), variables=changed.variables)
    node = Node(name="n0", devices=1, env=inventory)
    env = make_plan(Inventory(name="d", nodes=(node,)), request, run_id="r", bundle="b").head.env
    assert env["OTHER"] == "1"
    assert {name: env.get(name) for name in row.change.variables} == dict(row.change.variables)
    calls = json.loads(env.get(CHANGED_CALLS, "[]"))
    assert [each["arguments"] for each in calls] == ([row.change.call.arguments] if row.change.call else [])


@pytest.mark.parametrize(
    ("change", "plan", "message"),
    [
        (unset("A", "B"), _plan(), "does not set A or B, so this remedy changes nothing"),
        (variables(A="1"), _plan(env={"A": "1"}), "already has A=1, so this remedy changes nothing"),
        (UNUSED.change, _plan(bare=True), "a Python program that orch prepares"),
        (UNUSED.change, _plan("executable"), "a Python program that orch prepares"),
    ],
)
def test_change_that_would_change_nothing_is_refused(change: Any, plan: LaunchPlan, message: str) -> None:  # a Change
    with pytest.raises(UsageError, match=message):
        changed_arguments(ARGUMENTS, change, plan)


def test_shared_trainer_gets_the_setting_and_is_refused_without_one() -> None:
    trainer = replace(ARGUMENTS, program=None, settings=("steps=9",))
    assert UNUSED.change is not None
    changed = changed_arguments(trainer, UNUSED.change, _plan("trainer"))
    assert (changed.settings, changed.variables) == (("steps=9", "find_unused_parameters=true"), {})
    with pytest.raises(UsageError, match="the shared trainer has no setting"):
        changed_arguments(trainer, call("f(a=1)", "m", "f", a=1), _plan("trainer"))


def _planned(row: Any, arguments: LaunchArguments = ARGUMENTS, first: Sequence[str] = ()) -> Planned:
    plan = _plan(env={"GLOO_SOCKET_IFNAME": "none0"})
    ladder = Ladder(arguments, LadderOptions(5, 30.0), rungs_of(plan, first), ())
    return Planned("r", row, "why", row.change, ladder, changed_arguments(arguments, row.change, plan))


class _Rungs:
    """Trials whose ends are written down, and the arguments with which they were launched."""

    def __init__(self, *ends: tuple[Outcome, str | None, int], took_s: float = 1.0) -> None:
        self.ends = list(ends)
        self.took_s = took_s
        self.launched: list[tuple[LaunchArguments, LadderOptions, bool]] = []

    def __call__(self, arguments: LaunchArguments, options: LadderOptions, trial: Trial, must_report: bool) -> Trial:
        self.launched.append((arguments, options, must_report))
        outcome, signature, steps = self.ends.pop(0)
        run = f"prove-{len(self.launched)}"
        ended = replace(trial, outcome=outcome, signature=signature, cause="its cause", run=run, steps=steps)
        return replace(ended, took_s=self.took_s)


SAME, DIFFERENT = "gloo-no-interface", "python-error"
ENDS: list[tuple[list[tuple[Outcome, str | None, int]], Result, str]] = [
    ([(PASSED, None, 5), (FAILED, SAME, 3), (PASSED, None, 8)], Result.PROVED, "rung 2 of 4, 2 ranks on n0 failed as r did, and passes"),
    ([(FAILED, SAME, 0), (FAILED, SAME, 0)], Result.NOT_HELPED, "with the remedy it fails the same way"),
    ([(FAILED, SAME, 0), (FAILED, DIFFERENT, 0)], Result.NOT_HELPED, "with the remedy it fails otherwise: its cause"),
    ([(PASSED, None, 5)] * 4, Result.NOT_REPRODUCED, "no rung failed"),
    ([(PASSED, None, 5), (FAILED, DIFFERENT, 0)], Result.NOT_REPRODUCED, "2 ranks on n0 fails otherwise: its cause"),
]  # fmt: skip


@pytest.mark.parametrize(("ends", "result", "text"), ENDS)
def test_smallest_rung_that_fails_in_the_same_way_is_repeated_with_the_change(
    ends: list[tuple[Outcome, str | None, int]], result: Result, text: str
) -> None:
    rungs = _Rungs(*ends)
    proof = prove(_planned(IFNAME), rungs)
    assert rungs.ends == []
    assert proof.result is result
    assert text in proof.text
    has_change = [bool(arguments.variables) for arguments, *_ in rungs.launched]
    assert has_change == [bool(trial.change) for trial in proof.trials]
    assert has_change == [False] * (len(ends) - has_change.count(True)) + [True] * has_change.count(True)


def test_trial_with_the_change_must_get_beyond_the_step_of_the_failure() -> None:
    rungs = _Rungs((PASSED, None, 5), (FAILED, SAME, 3), (PASSED, None, 8))
    proof = prove(_planned(IFNAME, first=["n2"]), rungs)
    assert [(a.nodes, a.shape, o.steps, m) for a, o, m in rungs.launched] == [
        ("n2", "1x1", 5, False),
        ("n2", "1x2", 5, True),
        ("n2", "1x2", 8, True),
    ]
    assert not any(arguments.debug for arguments, *_ in rungs.launched)
    assert [trial.command for trial in proof.trials] == [f"orch rerun prove-{number}" for number in (1, 2, 3)]


def test_trial_with_the_change_must_live_twice_as_long_as_the_one_that_failed() -> None:
    limits = []
    for took_s in (7.0, 29.0):
        rungs = _Rungs((FAILED, SAME, 0), (PASSED, None, 0), took_s=took_s)
        prove(_planned(IFNAME), rungs)
        limits.append([options.limit_s for _, options, _ in rungs.launched])
    assert limits == [[30.0, 30.0], [30.0, 58.0]]


def test_trials_of_a_users_program_warn_of_its_checkpoints() -> None:
    [warning] = _planned(IFNAME).warnings
    assert "it resumes from checkpoints outside of $ORCH_RUN_DIR, and writes over them" in warning
    assert _planned(UNUSED, replace(ARGUMENTS, program=None)).warnings == ()


def test_hang_is_not_proved_by_a_program_that_only_keeps_running() -> None:
    rungs = _Rungs((FAILED, "gloo-timeout", 0), (FAILED, None, 0))
    prove(_planned(CATALOGUE["gloo-timeout"]), rungs)
    assert [must_report for *_, must_report in rungs.launched] == [False, True]


def test_trial_of_the_shared_trainer_keeps_its_limits_and_none_of_its_checkpoints() -> None:
    rungs = _Rungs((FAILED, "gloo-timeout", 0), (PASSED, None, 0))
    arguments = replace(ARGUMENTS, program=None, settings=("steps=900", "ddp_timeout=7"))
    prove(_planned(CATALOGUE["gloo-timeout"], arguments), rungs)
    short = ("steps=5", "out=ladder-checkpoints", "resume=none", "report=")
    assert [launched.settings for launched, *_ in rungs.launched] == [
        ("steps=900", "ddp_timeout=7", *short),
        ("steps=900", "ddp_timeout=7", "ddp_timeout=1800", *short),
    ]


@pytest.mark.parametrize(
    ("signature", "program", "next_step"),
    [
        ("gloo-no-interface", ("train.py",), "in env: of i.yaml: unset GLOO_SOCKET_IFNAME; then: orch rerun r"),
        ("ddp-unused-parameters", None, "orch rerun r find_unused_parameters=true"),
        (
            "ddp-unused-parameters",
            ("train.py",),
            "in the program: DistributedDataParallel(find_unused_parameters=True); then: orch rerun r",
        ),
    ],
)
def test_next_step_launches_the_whole_run_with_the_change(
    signature: str, program: tuple[str, ...] | None, next_step: str
) -> None:
    rungs = _Rungs((FAILED, signature, 0), (PASSED, None, 0))
    proof = prove(_planned(CATALOGUE[signature], replace(ARGUMENTS, program=program)), rungs)
    assert (proof.result, proof.next_step) == (Result.PROVED, next_step)


def test_trial_that_could_not_be_launched_has_no_command() -> None:
    assert Trial("rung 1 of 1, 1 rank on n0", FAILED).command is None


def test_json_of_a_proof_names_the_runs_and_their_commands() -> None:
    trial = Trial("rung 1 of 1, 1 rank on n0", PASSED, change="unset A", run="p")
    proof = Proof("r", IFNAME, "why", unset("A"), (trial,), "orch rerun r").to_json()
    assert (proof["result"], proof["change"], proof["signature"]) == ("proved", "unset A", IFNAME.id)
    assert proof["next"] == "orch rerun r"
    assert proof["trials"] == [
        {
            "rung": trial.rung,
            "change": "unset A",
            "command": "orch rerun p",
            "run": "p",
            "passed": True,
            "outcome": "passed",
            "signature": None,
            "cause": None,
        }
    ]


LICENCE = """
[licence-server]
text: no licence from * after
cause: the licence server did not answer
remedy: lmstat -a
sample: no licence from lic0 after 30 s
"""


@pytest.mark.processes
def test_variable_that_breaks_a_run_is_proved_by_the_runs_without_and_with_it(tmp_path: Path) -> None:
    line = f"echo $ORCH_RUN_ID $ORCH_STATE >>{tmp_path}/.work/hooks"
    hook = {"on": ["STARTING", "DONE", "FAILED"], "command": ["sh", "-c", line]}
    orch = orch_here(tmp_path, NEEDS_AN_INTERFACE, hook=hook, env={"GLOO_SOCKET_IFNAME": "none0"})
    orch("ssh-launch", "--no-check", "--", "sh", "train.sh", code=1)
    failed = orch.status()["id"]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mine").write_text(LICENCE)
    elsewhere = replace(orch, cwd=tmp_path / "elsewhere", env={"ORCH_HOME": str(orch.home)})
    done = elsewhere("diagnose", failed, "--prove", "--json", "--signatures", "mine")
    proof = json.loads(done.stdout)
    assert done.stderr.index("warning: the trials run your program as it is") < done.stderr.index("rung 1 of 2")
    assert (proof["run"], proof["signature"], proof["result"]) == (failed, "gloo-no-interface", "proved")
    assert [(trial["rung"], trial["passed"], trial["change"]) for trial in proof["trials"]] == [
        ("rung 1 of 2, 1 rank on n0", True, None),
        ("rung 2 of 2, 2 ranks on n[0-1]", False, None),
        ("rung 2 of 2, 2 ranks on n[0-1]", True, "unset GLOO_SOCKET_IFNAME"),
    ]
    elsewhere(*proof["trials"][2]["command"].split()[1:])
    states = {record["id"]: record["state"] for record in orch.records()}
    assert [states[trial["run"]] for trial in proof["trials"]] == ["DONE", "FAILED", "DONE"]
    assert (tmp_path / ".work/hooks").read_text() == f"{failed} STARTING\n{failed} FAILED\n"
    refused = orch("diagnose", proof["trials"][2]["run"], "--prove", code=2)
    assert "is DONE: it has not failed" in refused.stderr
