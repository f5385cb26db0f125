"""The class of a failed run, and if another attempt can help: by its diagnosis, else by how it ended. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orchestrator.diagnosis.weigh import Confidence
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.node.events import NO_RETRY
from orchestrator.run import RunState

if TYPE_CHECKING:
    from orchestrator.diagnosis.weigh import Diagnosis
    from orchestrator.launchers.job import JobStatus
    from orchestrator.run import RankExit
    from orchestrator.verdict.judge import Verdict

_BY_JOB_STATE = {
    "OUT_OF_MEMORY": (FailureClass.MEMORY, Retry.NEVER),
    "NODE_FAIL": (FailureClass.NODE, Retry.ELSEWHERE),
    "BOOT_FAIL": (FailureClass.NODE, Retry.ELSEWHERE),
    "PREEMPTED": (FailureClass.PREEMPTION, Retry.RETRY),
    "TIMEOUT": (FailureClass.PREEMPTION, Retry.NEVER),
    "DEADLINE": (FailureClass.PREEMPTION, Retry.NEVER),
}
_CRASHES = frozenset({"SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"})
_OF_SHELL = {128 + number: name for number, name in ((6, "SIGABRT"), (7, "SIGBUS"), (9, "SIGKILL"), (11, "SIGSEGV"))}
# exit codes of argparse and of Python without its script, and of shells for programs that they cannot start
_NOT_STARTED = frozenset({2, 126, 127})
_FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|the disk of \S+ is full|has no inodes left")


def classify(
    verdict: Verdict, job: JobStatus | None = None, diagnosis: Diagnosis | None = None
) -> tuple[FailureClass, Retry] | None:
    """
    The class of a run that failed or is lost, and if another attempt can help; None for other states.

    Args:
        job: the last status of the Slurm job.
        diagnosis: that of the attempt, if there is one; one of low confidence counts only where nothing else is known.
    """
    if verdict.state is RunState.LOST:
        return FailureClass.NODE, Retry.ELSEWHERE
    if verdict.state is not RunState.FAILED:
        return None
    if verdict.is_refused:
        return FailureClass.CONFIG, Retry.NEVER
    found, retry = _of_job(job) or _of_diagnosis(diagnosis) or _of_verdict(verdict)
    if found is FailureClass.UNKNOWN and diagnosis is not None and diagnosis.kind and diagnosis.retry:
        found, retry = diagnosis.kind, diagnosis.retry
    if verdict.exit is not None and verdict.exit.code == NO_RETRY:
        retry = Retry.NEVER
    return found, retry


def _of_job(job: JobStatus | None) -> tuple[FailureClass, Retry] | None:
    return None if job is None else _BY_JOB_STATE.get(job.state)


def _of_diagnosis(diagnosis: Diagnosis | None) -> tuple[FailureClass, Retry] | None:
    if diagnosis is None or diagnosis.kind is None or diagnosis.retry is None:
        return None
    return None if diagnosis.confidence is Confidence.LOW else (diagnosis.kind, diagnosis.retry)


def _of_verdict(verdict: Verdict) -> tuple[FailureClass, Retry]:
    """The class by the exit of the first rank that failed; without one, by the message."""
    if verdict.exit is not None:
        found = _of_exit(verdict.exit)
    else:
        found = FailureClass.STORAGE if _FULL_DISK.search(verdict.message or "") else FailureClass.UNKNOWN
    return found, found.retry


def _of_exit(exit_: RankExit) -> FailureClass:
    if exit_.kind in set(FailureClass):
        return FailureClass(exit_.kind)
    if exit_.rank is None and not exit_.per_node:
        return FailureClass.NODE  # the agent was killed, or its node restarted
    if _FULL_DISK.search(exit_.error or ""):
        return FailureClass.STORAGE
    signal = exit_.signal or _OF_SHELL.get(exit_.code or 0)
    if signal is not None:
        if signal == "SIGBUS":  # a full /dev/shm, or a mapped file that was shortened
            return FailureClass.STORAGE
        return FailureClass.CODE if signal in _CRASHES else FailureClass.UNKNOWN
    return FailureClass.CONFIG if exit_.code in _NOT_STARTED else FailureClass.CODE
