"""Effective time, failures, throughput and checkpoint interval: of one run, or of all runs that are recorded here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import datetime
from math import sqrt
from typing import Any

from orchestrator.errors import NodesError, RunNotFound, UsageError
from orchestrator.failure_class import FailureClass
from orchestrator.launchers import launcher_for
from orchestrator.node.run.events import REQUEUE
from orchestrator.progress import OnProgress
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import all_runs, read_runs
from orchestrator.run import RunRecord, RunState
from orchestrator.stored import known_fields
from orchestrator.usecases.reports.attempts import read_attempts
from orchestrator.usecases.reports.diff import RecordedRun, seconds_to_end
from orchestrator.usecases.reports.timeline import LOST, Timeline, timeline

RATES = ("tokens_per_s", "samples_per_s")
SCALING_TARGET = (0.85, 0.95)
"""Two nodes should be 1.7 to 1.9 times as fast as one."""
UTILIZATION_TARGETS = ("95% on one node", "85 to 95% on several")
"""The targets for the mean utilization of the cards."""
ASSUMED_MTTF_NODE_S = 86400 / 0.0065
"""The mean time to failure of a node where none has failed yet: 6.5 failures in 1,000 node-days, RSC-1 in arXiv:2410.21680."""
_FAILURES = (RunState.FAILED, RunState.LOST)


@dataclass(frozen=True, slots=True)
class History:
    """All runs that have started, without those of `orch ladder` and `--prove`: their number by state, failures by class, and time by node."""

    states: Mapping[str, int]
    classes: Mapping[str, int]
    run_s: float
    node_s: float
    """Sum over the runs of nodes times duration."""
    failures: int
    timed_failures: int
    """The number of failures of those runs whose time is counted in run_s and node_s."""
    untimed: int = 0
    """The Slurm runs that have not been measured: their records do not have the time in the queue."""
    timelines: Sequence[Timeline] = ()
    """The timelines of the runs that `orch stats RUN` has measured."""

    @property
    def mttf_s(self) -> float | None:
        """The mean time between failures of a run; None without a failure."""
        return self.run_s / self.timed_failures if self.timed_failures else None

    @property
    def mttf_node_s(self) -> float | None:
        """The mean time to failure of one node; None without a failure."""
        return self.node_s / self.timed_failures if self.timed_failures else None

    @property
    def ettr(self) -> float | None:
        """The share of productive time in all measured runs; None without one."""
        wall_s = sum(timeline.wall_s for timeline in self.timelines)
        return sum(timeline.productive_s for timeline in self.timelines) / wall_s if wall_s else None

    @property
    def lost(self) -> dict[str, float]:
        """The lost time of all measured runs, by part."""
        return {part: sum(timeline.lost.get(part, 0.0) for timeline in self.timelines) for part in LOST}

    def to_json(self) -> dict[str, Any]:
        measured = {"runs": len(self.timelines), "ettr": self.ettr, "lost_s": self.lost}
        mttf = {"mttf_s": self.mttf_s, "mttf_node_s": self.mttf_node_s, "untimed": self.untimed}
        counts = {"states": self.states, "failures": self.failures, "classes": self.classes}
        return {**counts, "run_s": self.run_s, "node_s": self.node_s, **mttf, "measured": measured}


def best_interval_s(save_s: float, mttf_s: float) -> float:
    """
    The time between the end of a save and the begin of the next one that loses the least time, by Daly; by Young it is √(2 save_s mttf_s).

    A short one loses time to saving, a long one to steps that are repeated after a failure. J. W. Young, "A first order
    approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974; J. T. Daly, "A higher order estimate
    of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006, equation 37.
    """
    if save_s >= 2 * mttf_s:
        return mttf_s
    share = save_s / (2 * mttf_s)
    return sqrt(2 * save_s * mttf_s) * (1 + sqrt(share) / 3 + share / 9) - save_s


def expected_ettr(save_s: float, mttf_s: float, interval_s: float, restart_s: float) -> float:
    """
    The share of the time in steps that count, if a failure costs `restart_s` and half an interval of steps.

    A. Kokolis et al., "Revisiting reliability in large-scale machine learning research clusters", arXiv:2410.21680, section 4.
    """
    return max(0.0, 1 - (restart_s + interval_s / 2) / mttf_s) / (1 + save_s / interval_s)


@dataclass(frozen=True, slots=True)
class Interval:
    """The time between two checkpoints: in use and best; `mttf_s` is that of the run's nodes together."""

    save_s: float
    mttf_s: float
    source: str
    """The runs from whose failures mttf_s was computed, in words."""
    in_use_s: float
    restart_s: float

    @property
    def best_s(self) -> float:
        return best_interval_s(self.save_s, self.mttf_s)

    def ettr(self, interval_s: float) -> float:
        """The expected share of productive time with this interval."""
        return expected_ettr(self.save_s, self.mttf_s, interval_s, self.restart_s)

    def to_json(self) -> dict[str, Any]:
        expected = {"best_ettr": self.ettr(self.best_s), "in_use_ettr": self.ettr(self.in_use_s)}
        return {**asdict(self), "best_s": self.best_s, **expected}


@dataclass(frozen=True, slots=True)
class Scaling:
    """The throughput of a run against another one, and against its number of nodes."""

    against: str
    factor: float
    nodes_factor: float

    @property
    def efficiency(self) -> float:
        """The share of a speed that grows as the nodes do."""
        return self.factor / self.nodes_factor

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "efficiency": self.efficiency, "target": SCALING_TARGET}


@dataclass(frozen=True, slots=True)
class RunStats:
    """The measurements of one run."""

    id: str
    state: str
    nodes: int
    ranks: int
    attempts: int
    timeline: Timeline
    failure_class: str | None
    rates: Mapping[str, float]
    """Throughput and `mfu` of the last attempt, as far as the program reports them."""
    interval: Interval | None = None
    scaling: Scaling | None = None
    missing: NodesError | None = field(default=None, compare=False)

    @property
    def mttf_s(self) -> float | None:
        """The mean time between failures; None without a failure."""
        return self.timeline.wall_s / self.timeline.failures if self.timeline.failures else None

    def to_json(self) -> dict[str, Any]:
        names = ("id", "state", "nodes", "ranks", "attempts", "failure_class", "rates")
        run = {name: getattr(self, name) for name in names}
        parts = {"interval": self.interval, "scaling": self.scaling}
        measured = {"ettr": self.timeline.ettr, "mttf_s": self.mttf_s, **asdict(self.timeline)}
        return {**run, **measured, **{name: part.to_json() if part else None for name, part in parts.items()}}


def run_stats(name: str, against: str | None, on_progress: OnProgress) -> RunStats:
    """
    Measure a run, and keep the times of a run that is over, so that they outlive its files on the nodes.

    Args:
        against: the run whose throughput is compared.

    Raises:
        RunNotFound: there is no such run.
        UsageError: the run has not started, or the throughput of a run is not known.
        NodesError: no node can be read, and the times are not kept.
    """
    run = RecordedRun.find(name)
    record, plan = run.record, run.plan
    if not record.started:
        raise UsageError(f"run {record.id} has not started: {record.message or record.state.value}")
    measured, missing = _timeline(run, on_progress)
    return RunStats(
        id=record.id,
        state=record.state.value,
        nodes=plan.node_count,
        ranks=plan.world_size,
        attempts=record.attempt,
        timeline=measured,
        failure_class=record.failure.kind.value if record.failure else None,
        rates=_rates(record),
        interval=_interval(measured, plan.node_count, record.attempt),
        scaling=None if against is None else scaling(run, RecordedRun.find(against)),
        missing=missing,
    )


def _timeline(run: RecordedRun, on_progress: OnProgress) -> tuple[Timeline, NodesError | None]:
    record = run.record
    try:
        with closing(launcher_for(run.plan, on_progress=on_progress)) as launcher:
            attempts, steps, missing = read_attempts(launcher, run.plan)
    except NodesError as exc:
        if (kept := kept_timeline(run.folder)) is None:
            raise
        return kept, exc
    measured = timeline(
        datetime.fromisoformat(record.created).timestamp(),
        attempts,
        steps,
        is_queued=record.by_scheduler,
        has_failed=record.state in _FAILURES,
    )
    return best_timeline(run, measured, missing), missing


def best_timeline(run: RecordedRun, measured: Timeline, missing: NodesError | None) -> Timeline:
    """The measured times, which are kept if they are whole, or the kept ones if files on the nodes are gone since."""
    if not run.record.state.ended:
        return measured
    kept = kept_timeline(run.folder)
    if kept is not None and (missing is not None or measured.wall_s < kept.wall_s):
        return kept
    if missing is None and measured.wall_s > 0:
        run.folder.write_stats(asdict(measured))
    return measured


def kept_timeline(folder: RunFolder) -> Timeline | None:
    """The times of a run as an earlier command has measured them; None if there are none."""
    stats = folder.read_stats()
    try:
        return None if stats is None else Timeline(**known_fields(Timeline, stats))
    except ValueError:
        return None


def _rates(record: RunRecord) -> dict[str, float]:
    values = {name: record.summary.get(name) for name in (*RATES, "mfu")}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def scaling(run: RecordedRun, against: RecordedRun) -> Scaling:
    """Compare the throughput of two runs; UsageError if one of them has not reported any."""
    first, second = _rates(run.record), _rates(against.record)
    unit = next((name for name in RATES if first.get(name) and second.get(name)), None)
    if unit is None:
        without = run if not any(map(first.get, RATES)) else against
        message = f"run {without.record.id} ({without.record.state.value}) has reported no throughput"
        hint = "the shared trainer reports it at its end; programs by `summary` in their progress"
        raise UsageError(message, hint=hint)
    return Scaling(against.record.id, first[unit] / second[unit], run.plan.node_count / against.plan.node_count)


def _interval(measured: Timeline, nodes: int, attempts: int) -> Interval | None:
    """The checkpoint interval, if saves were measured; failures are those of the run, else of all runs, else assumed."""
    if not measured.saves or measured.save_s <= 0 or measured.training_s <= 0:
        return None
    if measured.failures:
        mttf_s, source = measured.wall_s / measured.failures, f"{measured.failures} failures of this run"
    elif (known := history()).mttf_node_s is not None:
        mttf_s, source = known.mttf_node_s / nodes, f"{known.timed_failures} failures of all runs"
    else:
        mttf_s, source = ASSUMED_MTTF_NODE_S / nodes, "6.5 failures in 1,000 node-days, as in arXiv:2410.21680"
    starts = sum(measured.lost[part] for part in ("check", "init", "restore", "first step")) / attempts
    ends = sum(measured.lost[part] for part in ("detect", "stop")) / max(1, measured.failures)
    in_use_s = measured.training_s / measured.saves
    return Interval(measured.save_s / measured.saves, mttf_s, source, in_use_s, starts + ends)


def history() -> History:
    """All runs that were started from this machine, from their records alone."""
    states, classes = Counter[str](), Counter[str]()
    run_s = node_s = 0.0
    failures = timed_failures = untimed = 0
    timelines = []
    for folder, record in read_runs(all_runs()[0]):
        if not record.started or record.is_trial:
            continue
        states[record.state.value] += 1
        kept = kept_timeline(folder)
        if kept is not None:
            timelines.append(kept)
        kind = record.failure.kind if record.failure else FailureClass.UNKNOWN
        if record.state in _FAILURES:
            classes[kind.value] += 1
        failed = [ended for ended in record.attempts if (ended.get("exit") or {}).get("code") != REQUEUE]
        classes.update(str(ended.get("class")) for ended in failed)
        has_failed = record.state in _FAILURES and kind is not FailureClass.PREEMPTION
        of_run = max(len(failed) + int(has_failed), kept.failures if kept else 0)
        failures += of_run
        if kept is None and record.by_scheduler:
            untimed += 1
            continue
        timed_failures += of_run
        seconds = kept.wall_s if kept else seconds_to_end(record) or 0.0
        run_s += seconds
        node_s += seconds * _node_count(folder, record)
    return History(dict(states), dict(classes), run_s, node_s, failures, timed_failures, untimed, timelines)


def _node_count(folder: RunFolder, record: RunRecord) -> int:
    """The number of nodes; records of older versions do not have it."""
    try:
        return record.node_count or folder.read_plan().node_count
    except RunNotFound:
        return 0
