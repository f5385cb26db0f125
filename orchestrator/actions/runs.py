"""The runs that are recorded on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import RunNotFound
from orchestrator.run import RunRecord
from orchestrator.store import RunFolder, Store, home


@dataclass(frozen=True, slots=True)
class RunSelection:
    """The runs to list: the newest `last` of those that are in one of the states and have all the tags."""

    last: int | None = None
    states: Sequence[str] = ()
    tags: Sequence[str] = ()

    def of(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """The selected records, in their order."""
        selected = [
            record
            for record in records
            if (not self.states or record.state.value in self.states) and set(self.tags) <= set(record.tags)
        ]
        return selected if self.last is None else selected[-self.last :]


def home_store() -> Store:
    """The store in $ORCH_HOME."""
    return Store(home(os.environ))


def find_run(name: str) -> RunFolder:
    """
    Find a run by its id, a unique prefix of the id, its name, or `latest`.

    Raises:
        RunNotFound: there is none, or several ids have the prefix.
    """
    try:
        return home_store().find(name)
    except RunNotFound as exc:
        if sweep := find_sweep(name):
            exc.hint = f"it is a sweep of {len(sweep)} runs; name one of them: orch list --sweep {name}"
        raise


def find_sweep(name: str) -> list[tuple[RunFolder, RunRecord]]:
    """
    The runs of a sweep, in task order; empty if there is no such sweep.

    Args:
        name: its id, or a unique prefix that no run's id has.
    """
    runs = readable_runs()[0]
    swept = [run for run in runs if run[1].sweep is not None and run[1].sweep.startswith(name)]
    sweeps = {record.sweep for _, record in swept}
    if not name or len(sweeps) != 1 or (name not in sweeps and any(record.id.startswith(name) for _, record in runs)):
        return []
    return sorted(swept, key=lambda run: _task(run[1]))


def is_sweep(name: str) -> bool:
    """Return whether the name is that of a sweep, and not of a run."""
    try:
        home_store().find(name)
    except RunNotFound:
        return bool(find_sweep(name))
    return False


def _task(record: RunRecord) -> int:
    """The index of the run's task in the job array; 0 if nothing was submitted."""
    return int((record.slurm_job or "").partition("_")[2] or 0)


def readable_runs() -> tuple[list[tuple[RunFolder, RunRecord]], list[str]]:
    """Read all records, oldest first; the second list holds the errors of damaged ones."""
    runs, damaged = [], []
    for folder in home_store().all():
        try:
            runs.append((folder, folder.read()))
        except RunNotFound as exc:
            damaged.append(str(exc))
    return runs, damaged
