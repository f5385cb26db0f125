"""Several runs: those that are recorded on this machine, and their differences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.api.run import Run
from orchestrator.api.tables import Rows
from orchestrator.errors import UsageError
from orchestrator.records.runs import RunSelection, all_runs, find_sweep, read_runs
from orchestrator.run import RunEntry, RunRecord, RunState
from orchestrator.usecases.reports import diff as reports
from orchestrator.usecases.reports.diff import RecordedRun

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-not-found,import-untyped,unused-ignore]  # optional


class Runs(list[Run]):
    """A list of runs; a notebook shows it as a table."""

    def __init__(self, runs: Iterable[Run] = (), warnings: Sequence[str] = ()) -> None:
        super().__init__(runs)
        self.warnings = tuple(warnings)
        """Such as of records that are damaged, one sentence each."""

    def rows(self) -> Rows:
        """Return a row per run, from the records alone: id, state, times, labels, swept settings and results."""
        return Rows(_row(run.record) for run in self)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas.DataFrame with `rows`."""
        return self.rows().to_frame()

    def _repr_html_(self) -> str:
        return self.rows()._repr_html_()


def runs(
    *,
    tags: str | Sequence[str] = (),
    states: str | Sequence[str] = (),
    sweep: str | None = None,
    last: int | None = None,
) -> Runs:
    """
    List the runs that were started from this machine, oldest first, by their records.

    Args:
        tags: only runs with all of these.
        states: only runs in one of these, such as "DONE".
        sweep: only the runs of this sweep, in the order of the values.
        last: only the newest of them.
    """
    wanted = [state.upper() for state in words(states)]
    if unknown := [state for state in wanted if state not in RunState.__members__]:
        raise UsageError(f"states: {unknown[0]} is no state", hint=", ".join(RunState.__members__))
    if last is not None and last < 1:
        raise UsageError(f"last={last}", hint="give a whole number from 1 on, or omit it")
    known, damaged = all_runs()
    if sweep is not None:
        known = [(folder, RunEntry.of(record)) for folder, record in find_sweep(sweep)]
        if not known:
            hint = "give the value of `record.sweep` in one of the runs"
            raise UsageError(f"no sweep {sweep!r}, or more than one", hint=hint)
    selected = RunSelection(last, wanted, words(tags)).of(known)
    return Runs((Run(record.id) for _, record in read_runs(selected)), damaged)


def compare(runs: Iterable[Run | str]) -> Rows:
    """
    Compare runs as `orch diff` does, from their records alone: a row per value that differs from the first run's.

    Returns:
        Rows of `topic` (code, command, environment, nodes, versions, inventory or results), `name`, and the value of each run
        under its id.

    Raises:
        UsageError: there are less than two runs.
        RunNotFound: there is no such run, or its record cannot be read.
    """
    names = [] if isinstance(runs, str) else [run.id if isinstance(run, Run) else run for run in runs]
    if len(names) < 2:  # noqa: PLR2004  a pair
        raise UsageError("compare() compares a list of at least two runs", hint='as in compare([run, "latest"])')
    return Rows(reports.compare([RecordedRun.find(name) for name in names]))


def words(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _row(record: RunRecord) -> dict[str, Any]:
    labels = {"note": record.note, "tags": record.tags, "sweep": record.sweep, **record.swept}
    times = {"created": record.created, "seconds": reports.seconds_to_end(record)}
    results = {name: record.summary.get(name) for name in reports.RESULTS}
    state = {"run": record.id, "launcher": record.launcher, "state": record.state.value, "message": record.message}
    return {**state, **times, **labels, **results}
