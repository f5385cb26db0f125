"""Test the class of a failure: by the scheduler, the diagnosis, the exit of a rank, or the message."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from orchestrator.diagnosis.rank_causes import Confidence, Diagnosis
from orchestrator.errors import LoginRefused, NodeError, NodesError, Unreachable
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.run import Failure, RankExit, RunState
from orchestrator.verdict.classify import classify, diagnosed, failure_of_launch
from orchestrator.verdict.judge import Verdict

EXIT = RankExit("n1", 3, 1, None)
DISK = Diagnosis("a disk is full", "disk-full", FailureClass.STORAGE, Retry.NEVER, confidence=Confidence.HIGH)


NODE = FailureClass.NODE, Retry.ELSEWHERE


def found(verdict: Verdict, diagnosis: Diagnosis | None = None) -> tuple[FailureClass, Retry] | None:
    failure = classify(verdict)
    if failure is None:
        return None
    if diagnosis is not None:
        failure = diagnosed(failure, diagnosis, verdict.exit)
    return failure.kind, failure.retry


def failed(exit_: RankExit | None, message: str = "") -> Verdict:
    return Verdict(RunState.FAILED, exit_, message or None)


@pytest.mark.parametrize(
    ("exit_", "expected"),
    [
        (EXIT, FailureClass.CODE),
        (replace(EXIT, kind="numbers"), FailureClass.NUMBERS),
        (replace(EXIT, kind="of a later version"), FailureClass.CODE),
        (replace(EXIT, code=2), FailureClass.CONFIG),
        (replace(EXIT, code=127), FailureClass.CONFIG),
        (replace(EXIT, code=137), FailureClass.UNKNOWN),
        (replace(EXIT, code=None, signal="SIGKILL"), FailureClass.UNKNOWN),
        (replace(EXIT, code=None, signal="SIGTERM"), FailureClass.UNKNOWN),
        (replace(EXIT, code=None, signal="SIGSEGV"), FailureClass.CODE),
        (replace(EXIT, code=None, signal="SIGBUS"), FailureClass.STORAGE),
        (replace(EXIT, error="OSError: [Errno 28] No space left on device: 'a'"), FailureClass.STORAGE),
        (RankExit("n1", None, None, "SIGKILL"), FailureClass.NODE),
        (RankExit("n1", None, 1, None, per_node=True), FailureClass.CODE),
    ],
)
def test_the_exit_of_the_first_rank_has_a_class(exit_: RankExit, expected: FailureClass) -> None:
    assert found(failed(exit_)) == (expected, expected.retry)


def test_what_slurm_or_the_supervisor_ended_has_their_class() -> None:
    gone = replace(failed(EXIT), failure=NODE)
    assert found(gone) == NODE
    assert found(gone, replace(DISK, confidence=Confidence.MEDIUM)) == NODE
    assert found(gone, DISK) == (FailureClass.STORAGE, Retry.NEVER)


def test_a_diagnosis_decides_unless_it_is_uncertain() -> None:
    killed = replace(EXIT, code=None, signal="SIGKILL")
    uncertain = replace(DISK, confidence=Confidence.LOW)
    assert found(failed(EXIT), DISK) == (FailureClass.STORAGE, Retry.NEVER)
    assert found(failed(EXIT), uncertain) == (FailureClass.STORAGE, Retry.NEVER)
    assert found(failed(replace(EXIT, kind="network")), uncertain) == (FailureClass.NETWORK, Retry.RETRY)
    assert found(failed(killed), uncertain) == (FailureClass.STORAGE, Retry.NEVER)


def test_a_failure_has_the_cause_of_its_diagnosis() -> None:
    failure = classify(failed(EXIT))
    assert failure is not None
    failure = diagnosed(failure, replace(DISK, nodes=("n1",), ranks=(3,)), EXIT)
    assert (failure.cause, failure.signature, failure.confidence, failure.origin) == (
        "a disk is full",
        "disk-full",
        "high",
        "rank 3 on n1",
    )
    assert Failure.from_json(json.loads(json.dumps(asdict(failure)))) == failure
    assert Failure.from_json({"kind": "of a later version", "retry": "retry"}).kind is FailureClass.UNKNOWN


def test_a_rank_can_rule_out_another_attempt() -> None:
    exit_ = replace(EXIT, code=93, kind="network")
    assert found(failed(exit_)) == (FailureClass.NETWORK, Retry.NEVER)


def test_states_and_messages_without_an_exit() -> None:
    assert found(failed(None, "n0: [Errno 28] No space left on device: '/w/events.jsonl'")) == (
        FailureClass.STORAGE,
        Retry.NEVER,
    )
    assert found(failed(None, "n0 was stopped by a signal")) == (FailureClass.UNKNOWN, Retry.RETRY)
    assert found(Verdict(RunState.FAILED, message="n0: disk", is_refused=True)) == (FailureClass.CONFIG, Retry.NEVER)
    assert found(Verdict(RunState.LOST)) == (FailureClass.NODE, Retry.ELSEWHERE)
    assert found(Verdict(RunState.DONE)) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unreachable("n0", "no route to host"), FailureClass.NODE),
        (NodesError([LoginRefused("n0", "the key is wrong"), Unreachable("n1", "timeout")], 2), FailureClass.NODE),
        (NodesError([LoginRefused("n0", "the key is wrong")], 2), FailureClass.CONFIG),
        (NodeError("n0", "the disk of /w is full (0 of 100 GB free)"), FailureClass.STORAGE),
        (OSError(28, "No space left on device"), FailureClass.STORAGE),
        (ZeroDivisionError(), FailureClass.UNKNOWN),
    ],
)
def test_a_launch_that_failed_has_a_class(error: BaseException, kind: FailureClass) -> None:
    assert failure_of_launch(error) == Failure(kind, kind.retry)
