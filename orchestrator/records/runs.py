"""The runs that are recorded on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.errors import RunNotFound
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.records.cache.entries import list_entries
from orchestrator.records.home import home
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.store import Store
from orchestrator.run import RunEntry, RunRecord


@dataclass(frozen=True, slots=True)
class RunSelection:
    """The runs to list: the newest `last` of those that are in one of the states and have all the tags."""

    last: int | None = None
    states: Sequence[str] = ()
    tags: Sequence[str] = ()

    def of(self, runs: Sequence[tuple[RunFolder, RunEntry]]) -> list[tuple[RunFolder, RunEntry]]:
        in_state = [run for run in runs if not self.states or run[1].state.value in self.states]
        selected = [run for run in in_state if set(self.tags) <= set(run[1].tags)]
        return selected if self.last is None else selected[-self.last :]


def home_store() -> Store:
    """The store in $ORCH_HOME."""
    return Store(home(os.environ))


def find_run(name: str) -> RunFolder:
    """The run of this id, unique prefix of one, or name (the newest that has not ended, else the newest), or `latest`; else RunNotFound."""
    if live := _live(runs_named(name)):
        return live[-1][0]
    try:
        return home_store().find(name)
    except RunNotFound as exc:
        if sweep := find_sweep(name):
            exc.hint = f"it is a sweep of {len(sweep)} runs; name one of them: orch list --sweep {name}"
        raise


def find_newest(name: str) -> RunFolder:
    """As find_run, but of several runs of that name always the newest."""
    named = runs_named(name)
    return named[-1][0] if named else find_run(name)


def runs_named(name: str) -> list[tuple[RunFolder, RunEntry]]:
    """The runs of this name, oldest first; none if it is an id, a prefix of one, or `latest`."""
    if name == "latest" or RUN_ID.fullmatch(name):
        return []
    return [run for run in all_runs()[0] if run[1].id.rsplit("-", 3)[0] == name]


def choice_among(name: str) -> str:
    """Which run of this name find_run returns, as a sentence, if others could have been meant; else empty."""
    named = runs_named(name)
    live = [entry.id for _, entry in _live(named)]
    if len(live) > 1:
        return f"{len(live)} runs called {name} have not ended; this is the newest, {live[-1]}"
    if live and live[-1] != named[-1][1].id:
        return f"this is {live[-1]}, which has not ended; the newest run called {name} is {named[-1][1].id}"
    return ""


def _live(runs: Sequence[tuple[RunFolder, RunEntry]]) -> list[tuple[RunFolder, RunEntry]]:
    return [run for run in runs if not run[1].state.final]


def find_sweep(name: str) -> list[tuple[RunFolder, RunRecord]]:
    """The runs of a sweep, in task order; empty without one. `name` is its id, or a unique prefix that no run's id has."""
    runs = all_runs()[0]
    swept = [run for run in runs if run[1].sweep is not None and run[1].sweep.startswith(name)]
    sweeps = {entry.sweep for _, entry in swept}
    if not name or len(sweeps) != 1 or (name not in sweeps and any(entry.id.startswith(name) for _, entry in runs)):
        return []
    # by task of the job array
    return sorted(read_runs(swept), key=lambda run: int((run[1].slurm_job or "").partition("_")[2] or 0))


def is_sweep(name: str) -> bool:
    try:
        home_store().find(name)
    except RunNotFound:
        return bool(find_sweep(name))
    return False


def all_runs() -> tuple[list[tuple[RunFolder, RunEntry]], list[str]]:
    """List all runs, oldest first; the second list holds the errors of damaged records."""
    return list_entries(home_store())


def read_runs(runs: Sequence[tuple[RunFolder, RunEntry]]) -> list[tuple[RunFolder, RunRecord]]:
    """Read the records of these runs; without those that have become unreadable."""
    records = []
    for folder, _ in runs:
        with suppress(RunNotFound):
            records.append((folder, folder.read()))
    return records
