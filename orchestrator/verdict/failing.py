"""
The failure of an attempt as its supervisor judged it, kept in the record until the next attempt or the end of the run.

The supervisor ends the ranks of all nodes. Reports that are read afterwards show agents that were stopped, which is a consequence.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.failure_class import FailureClass, Retry
from orchestrator.run import RankExit, RunRecord, RunState
from orchestrator.stored import known_fields
from orchestrator.verdict.judge import Verdict


def to_json(verdict: Verdict, attempt: int, waits: str | None = None) -> dict[str, Any]:
    """The value of `RunRecord.failing`; `waits` is what the next attempt waits for, and until when, as a sentence."""
    return {
        "attempt": attempt,
        "message": verdict.message,
        "exit": None if verdict.exit is None else asdict(verdict.exit),
        "failure": None if verdict.failure is None else [verdict.failure[0].value, verdict.failure[1].value],
        "failed_nodes": list(verdict.failed_nodes),
        "waits": waits,
    }


def known_failure(record: RunRecord, verdict: Verdict, attempt: int) -> Verdict:
    """The verdict of the supervisor if it has judged this attempt as failed, else the given one; DONE and STOPPED remain."""
    failing = record.failing
    if failing is None or failing.get("attempt") != attempt or verdict.state not in (RunState.FAILED, RunState.LOST):
        return verdict
    exit_, failure = failing.get("exit"), failing.get("failure")
    return Verdict(
        RunState.FAILED,
        RankExit(**{**known_fields(RankExit, exit_), "lines": tuple(exit_.get("lines", ()))}) if exit_ else None,
        failing.get("message"),
        failure=(FailureClass(failure[0]), Retry(failure[1])) if failure else None,
        failed_nodes=tuple(failing.get("failed_nodes", ())),
    )


def waits(record: RunRecord) -> str | None:
    """The nodes that the next attempt waits for; None if it waits for none."""
    return (record.failing or {}).get("waits")
