"""The runs that are recorded on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import RunNotFound
from orchestrator.run import RunRecord
from orchestrator.store import RunFolder, Store, home


@dataclass(frozen=True, slots=True)
class Selection:
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
    return home_store().find(name)


def readable_runs() -> tuple[list[tuple[RunFolder, RunRecord]], list[str]]:
    """Read all records, oldest first; the second list holds the errors of damaged ones."""
    runs, damaged = [], []
    for folder in home_store().all():
        try:
            runs.append((folder, folder.read()))
        except RunNotFound as exc:
            damaged.append(str(exc))
    return runs, damaged
