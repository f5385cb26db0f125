"""Write the verdict on a run into the run's record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import os_error_text
from orchestrator.records.cache.nodes import keep_end
from orchestrator.records.run_folder import KeptRun
from orchestrator.run import RunRecord
from orchestrator.verdict.classify import classify
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.launching import is_launching
from orchestrator.verdict.missing_files import explain
from orchestrator.verdict.replicas import differing_replicas
from orchestrator.verdict.slow_ranks import slow_ranks


def record_outcome(
    run: KeptRun, verdict: Verdict, nodes: Sequence[NodeObservation] = (), *, attempt: int = 1
) -> RunRecord:
    """Write the verdict into the run's record. A final state is kept, except LOST: a later verdict is based on more reports."""
    if verdict.exit is not None and verdict.exit.missing is not None:
        verdict = explain(verdict, run.read_plan(), run.read().code)
    had_ended = run.read().state.ended
    record = run.change(lambda record: _settled(replace(record, attempt=max(record.attempt, attempt)), verdict, nodes))
    if record.state.ended and not had_ended:
        keep_end(run, replace(record, attempt=attempt), [node.node for node in nodes])
    return record


def record_outcome_if_writable(
    run: KeptRun, verdict: Verdict, nodes: Sequence[NodeObservation] = (), *, attempt: int = 1
) -> tuple[RunRecord, str]:
    """As `record_outcome`; if the record cannot be written, such as on a full disk, also a warning. The record is up to date in any case."""
    try:
        return record_outcome(run, verdict, nodes, attempt=attempt), ""
    except OSError as exc:
        record = run.read()
        changed = _settled(replace(record, attempt=max(record.attempt, attempt)), verdict, nodes)
        return changed, f"the record of run {record.id} cannot be written: {os_error_text(exc)}"


def _settled(record: RunRecord, verdict: Verdict, nodes: Sequence[NodeObservation]) -> RunRecord:
    is_unchanged = verdict.state == record.state and (verdict.state.final or verdict.message == record.message)
    if record.state.ended or is_unchanged or (verdict.state.final and is_launching(record)):
        return record
    reported = (progress.get("summary") for node in nodes for progress in node.progress.values())
    summary = next((value for value in reported if isinstance(value, dict)), record.summary)
    ended = datetime.now(timezone.utc).isoformat() if verdict.state.final else None
    left = Counter[str]()
    for node in nodes:
        left.update(node.finished.left if node.finished else {})
    differing = differing_replicas(nodes)
    slow = slow_ranks(nodes)
    slow_names = slow.finding.nodes if slow and slow.finding else ()
    return replace(
        record,
        state=verdict.state,
        exit=verdict.exit,
        message=verdict.message,
        failure=classify(verdict),
        ended=ended,
        summary=summary,
        left=dict(left) or record.left,
        refused=verdict.is_refused,
        failing=None if verdict.state.final else record.failing,
        replicas=record.replicas or (None if differing is None else str(differing)),
        slow=record.slow if slow is None else slow.text,
        slow_nodes=tuple(dict.fromkeys((*record.slow_nodes, *slow_names))),
    )
