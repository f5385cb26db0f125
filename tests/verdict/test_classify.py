"""Test the class of a failure: by the scheduler, the diagnosis, the exit of a rank, or the message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.diagnosis.weigh import Confidence, Diagnosis
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.launchers.job import JobStatus
from orchestrator.run import RankExit, RunState
from orchestrator.verdict.classify import classify
from orchestrator.verdict.judge import Verdict

EXIT = RankExit("n1", 3, 1, None)
DISK = Diagnosis("a disk is full", "disk-full", FailureClass.STORAGE, Retry.NEVER, confidence=Confidence.HIGH)


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
    assert classify(failed(exit_)) == (expected, expected.retry)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("OUT_OF_MEMORY", (FailureClass.MEMORY, Retry.NEVER)),
        ("NODE_FAIL", (FailureClass.NODE, Retry.ELSEWHERE)),
        ("PREEMPTED", (FailureClass.PREEMPTION, Retry.RETRY)),
        ("TIMEOUT", (FailureClass.PREEMPTION, Retry.NEVER)),
        ("FAILED", (FailureClass.CODE, Retry.NEVER)),
    ],
)
def test_what_slurm_ended_has_the_class_of_slurm(state: str, expected: tuple[FailureClass, Retry]) -> None:
    assert classify(failed(EXIT), JobStatus(state, over=True)) == expected


def test_a_diagnosis_decides_unless_it_is_uncertain() -> None:
    killed = replace(EXIT, code=None, signal="SIGKILL")
    uncertain = replace(DISK, confidence=Confidence.LOW)
    assert classify(failed(EXIT), diagnosis=DISK) == (FailureClass.STORAGE, Retry.NEVER)
    assert classify(failed(EXIT), diagnosis=uncertain) == (FailureClass.CODE, Retry.NEVER)
    assert classify(failed(killed), diagnosis=uncertain) == (FailureClass.STORAGE, Retry.NEVER)


def test_a_rank_can_rule_out_another_attempt() -> None:
    exit_ = replace(EXIT, code=93, kind="network")
    assert classify(failed(exit_)) == (FailureClass.NETWORK, Retry.NEVER)


def test_states_and_messages_without_an_exit() -> None:
    assert classify(failed(None, "n0: [Errno 28] No space left on device: '/w/events.jsonl'")) == (
        FailureClass.STORAGE,
        Retry.NEVER,
    )
    assert classify(failed(None, "n0 was stopped by a signal")) == (FailureClass.UNKNOWN, Retry.RETRY)
    assert classify(Verdict(RunState.FAILED, message="n0: disk", is_refused=True)) == (FailureClass.CONFIG, Retry.NEVER)
    assert classify(Verdict(RunState.LOST)) == (FailureClass.NODE, Retry.ELSEWHERE)
    assert classify(Verdict(RunState.DONE)) is None
