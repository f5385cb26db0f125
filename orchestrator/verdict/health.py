"""The evidence about a run, and its judgement in one sentence: healthy, or the most serious fault. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.launchers.job import SILENT, STOPPED, SUSPENDED, JobStatus
from orchestrator.node.number_text import clock
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.findings import Finding
from orchestrator.portable.names.hostlist import fold
from orchestrator.run import RunRecord, RunState
from orchestrator.verdict.hangs import positions_without_progress
from orchestrator.verdict.training import training_of

Health = Literal["healthy", "warning", "failing", "waiting", "over"]
Judgement: TypeAlias = tuple[Health, str]


@dataclass(frozen=True, slots=True)
class Observed:
    """An observation of a node, and when it was made, in seconds since 1970; `is_current` if the node has just answered."""

    node: NodeObservation
    at_s: float
    is_current: bool = True


@dataclass(frozen=True, slots=True)
class PortRate:
    """The traffic of a node's RDMA ports between two looks, and their errors in that time."""

    received_per_s: float
    sent_per_s: float
    errors: int


@dataclass(frozen=True, slots=True)
class Known:
    """The evidence about a run; `now_s` in seconds since 1970."""

    record: RunRecord
    now_s: float
    plan: LaunchPlan | None = None
    observed: Sequence[Observed] = ()
    """The newest observation of each node, in node order."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """The nodes that did not answer, with the reason."""
    findings: Sequence[Finding] = ()
    waits: str = ""
    """The nodes for which the next attempt waits, and until when; empty if it waits for none."""
    queue: JobStatus | None = None
    position: str = ""
    """The position of a waiting Slurm job in the queue."""
    warnings: Sequence[str] = ()
    """About the supervision and stopped agents."""
    events: Sequence[Mapping[str, Any]] = ()
    """The supervisor's events.jsonl."""
    is_launching: bool = False
    rates: Mapping[str, PortRate] = field(default_factory=dict)
    """The traffic of nodes, where two looks have shown it."""

    @property
    def current(self) -> list[NodeObservation]:
        """The observations of the nodes that have just answered."""
        return [observed.node for observed in self.observed if observed.is_current]


def judged(known: Known, findings: Sequence[str]) -> Judgement:
    """The health of the run and the verdict; `findings` as texts, the most serious first."""
    serious = _over(known) or _waiting(known) or _failed_attempt(known) or _unknown(known) or _stuck(known)
    return serious or _faults(known, findings) or _starting_or_healthy(known)


def _over(known: Known) -> Judgement | None:
    record = known.record
    if not record.state.final:
        return None
    seconds = duration_s(record, known.now_s)
    after = f" after {clock(seconds)}" if seconds is not None and record.ended else ""
    if record.state is RunState.DONE:
        return "over", f"done{after}"
    if record.state is RunState.STOPPED:
        return "over", f"stopped{after}" + (f": {record.message}" if record.message else "")
    cause = record.failure.cause if record.failure is not None else None
    word = "failed" if record.state is RunState.FAILED else "lost"
    return "failing", f"{word}{after}: {cause or record.message or record.exit or 'cause unknown'}"


def _waiting(known: Known) -> Judgement | None:
    """The verdict on a run whose ranks do not run yet, or not now."""
    queue, text = known.queue, ""
    if known.is_launching:
        text = "starting: the launch is in progress"
    elif known.waits:
        text = f"restarting: {known.waits}"
    elif queue is not None and queue.waits:
        text = f"queued: {queue.why or queue.state}" + (f" ({known.position})" if known.position else "")
    elif queue is not None and queue.state in (SUSPENDED, STOPPED):
        text = f"suspended by Slurm: {queue.why or queue.state}"
    elif known.record.state is RunState.PENDING:
        reason = f"Slurm does not answer ({queue.reason})" if queue is not None and queue.state == SILENT else ""
        text = f"queued: {reason or known.record.message or 'its job has not started'}"
    return ("waiting", text) if text else None


def _failed_attempt(known: Known) -> Judgement | None:
    """The verdict on an attempt that its supervisor has judged as failed."""
    failing = known.record.failing
    if failing is None or failing.get("attempt") != known.record.attempt:
        return None
    return "failing", f"attempt {known.record.attempt} failed: {failing.get('message') or 'cause unknown'}"


def _unknown(known: Known) -> Judgement | None:
    if not known.missing or known.current:
        return None
    ages_s = [known.now_s - observed.at_s for observed in known.observed]
    values = f"; the values are {clock(min(ages_s))} old" if ages_s else ""
    return "failing", f"unknown: {_no_answer(known)}{values}"


def _stuck(known: Known) -> Judgement | None:
    running = [node for node in known.current if node.finished is None and node.ranks]
    hangs = [node.hang for node in running if node.hang is not None]
    if not hangs or len(hangs) < len(running):
        return None
    quiet_s = known.now_s - max(hang["time"] for hang in hangs)
    positions = positions_without_progress(running).partition("; ")[0]
    return "failing", f"no progress for {clock(quiet_s)}" + (f": {positions}" if positions else "")


def _faults(known: Known, findings: Sequence[str]) -> Judgement | None:
    """The verdict on a run that continues with faults: the first one."""
    texts = [_no_answer(known)] if known.missing else []
    texts += [*findings, *known.warnings]
    if not texts:
        return None
    return "warning", texts[0] + (f" (and {len(texts) - 1} more)" if len(texts) > 1 else "")


def _starting_or_healthy(known: Known) -> Judgement:
    progress = {rank: report for node in known.current for rank, report in node.progress.items()}
    training = training_of(progress)
    if known.record.state is RunState.STARTING or not known.observed:
        return "waiting", "starting: the ranks have not all started"
    if training is not None and training.phase == "init" and training.step == 0:
        return "waiting", "starting: the ranks load, no step is done yet"
    has_steps = any("step" in report for report in progress.values())
    return "healthy", "healthy" if has_steps else "running; no step is reported yet"


def _no_answer(known: Known) -> str:
    reason = next(iter(known.missing.values()))
    return f"{fold(known.missing)} {'does' if len(known.missing) == 1 else 'do'} not answer: {reason}"


def duration_s(record: RunRecord, now_s: float) -> float | None:
    """The seconds from the launch to the end, or to now; None if a time is not known."""
    begin = next(iter(times(record.created)), None)
    end = next(iter(times(record.ended)), None) if record.state.final else now_s
    return None if begin is None or end is None else max(0.0, end - begin)


def times(text: object) -> list[float]:
    """The time of a text in ISO 8601, in seconds since 1970; empty if it is none."""
    try:
        return [datetime.fromisoformat(str(text)).timestamp()]
    except ValueError:
        return []
