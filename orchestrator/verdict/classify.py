"""The class of a failed run, and if another attempt can help: by its diagnosis, else by how it ended. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orchestrator.errors import NodesError, OrchError, Unreachable
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.node.run.events import NO_RETRY
from orchestrator.run import Failure, RunState

if TYPE_CHECKING:
    from orchestrator.diagnosis.rank_causes import Diagnosis
    from orchestrator.run import RankExit
    from orchestrator.verdict.judge import Verdict

_REPORTED = frozenset({FailureClass.NODE, FailureClass.PREEMPTION})
"""Classes that the scheduler or the supervisor has reported: a diagnosis that is not certain cannot know better."""
_GUESSED = frozenset({FailureClass.UNKNOWN, FailureClass.CODE})
"""Classes that follow from an exit code or a signal alone: any text that was found says more."""
_CRASHES = frozenset({"SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"})
_OF_SHELL = {128 + number: name for number, name in ((6, "SIGABRT"), (7, "SIGBUS"), (9, "SIGKILL"), (11, "SIGSEGV"))}
# exit codes of argparse and of Python without its script, and of shells for programs that they cannot start
_NOT_STARTED = frozenset({2, 126, 127})
_FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|the disk of \S+ is full|has no inodes left")


def classify(verdict: Verdict) -> Failure | None:
    """The class of a run that failed or is lost, and if another attempt can help; None for other states."""
    if verdict.state is RunState.LOST:
        return Failure(FailureClass.NODE, FailureClass.NODE.retry)
    if verdict.state is not RunState.FAILED:
        return None
    if verdict.is_refused:
        return Failure(FailureClass.CONFIG, FailureClass.CONFIG.retry)
    kind = _of_exit(verdict.exit) if verdict.exit is not None else FailureClass.UNKNOWN
    if verdict.exit is None and _FULL_DISK.search(verdict.message or ""):
        kind = FailureClass.STORAGE
    kind, retry = verdict.failure or (kind, kind.retry)
    never = verdict.exit is not None and verdict.exit.code == NO_RETRY
    return Failure(kind, Retry.NEVER if never else retry, nodes=verdict.failed_nodes)


def failure_of_launch(error: BaseException) -> Failure:
    errors = error.failures if isinstance(error, NodesError) else [error]
    if any(isinstance(each, Unreachable) for each in errors):
        found = FailureClass.NODE
    elif isinstance(error, OSError):
        found = FailureClass.STORAGE
    elif all(isinstance(each, OrchError) for each in errors):  # a refused login or start, no Python, a wrong program
        found = FailureClass.STORAGE if _FULL_DISK.search(str(error)) else FailureClass.CONFIG
    else:
        found = FailureClass.UNKNOWN
    return Failure(found, found.retry)


def diagnosed(failure: Failure, diagnosis: Diagnosis, exit_: RankExit | None) -> Failure:
    """The failure with its diagnosis, which decides the class if it is more certain than what was known before."""
    kind, retry = failure.kind, failure.retry
    is_better = diagnosis.confidence == "high" or (
        kind not in _REPORTED if diagnosis.confidence == "medium" else kind in _GUESSED
    )
    if diagnosis.kind is not None and diagnosis.retry is not None and is_better:
        never = exit_ is not None and exit_.code == NO_RETRY
        kind, retry = diagnosis.kind, Retry.NEVER if never else diagnosis.retry
    return Failure(
        kind,
        retry,
        is_diagnosed=True,
        cause=diagnosis.cause or None,
        signature=diagnosis.signature,
        nodes=diagnosis.nodes or failure.nodes,
        ranks=diagnosis.ranks,
        confidence=diagnosis.confidence.value if diagnosis.confidence else None,
        reason=diagnosis.reason,
        proof=tuple(hit.text for hit in diagnosis.proof or diagnosis.errors),
        remedy=diagnosis.remedy,
    )


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
