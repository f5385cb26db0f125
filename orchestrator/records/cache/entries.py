"""The list entries of runs that have ended, kept in one file: a list of thousands of runs reads the records of the others only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple
from typing import Any

from orchestrator.errors import RunNotFound
from orchestrator.records.files import json_object, write_file
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.store import Store, second
from orchestrator.run import LauncherName, RunEntry, RunState

FILE = "ended-runs.json"
VERSION = 1
MOST_NEW = 16  # ended runs whose records are read each time, before the file is written again


def list_entries(store: Store) -> tuple[list[tuple[RunFolder, RunEntry]], list[str]]:
    """The entries of all runs, oldest first, and the errors of damaged records. The record of a run that has ended never changes."""
    kept, new = _kept(store), dict[str, RunEntry]()
    runs, damaged = [], []
    for run_id in store.ids():
        folder = RunFolder(store.runs / run_id)
        entry = kept.get(run_id)
        if entry is None:
            try:
                entry = RunEntry.of(folder.read())
            except RunNotFound as exc:
                if not isinstance(exc.__cause__, FileNotFoundError | NotADirectoryError):  # else there is no record
                    damaged.append(str(exc))
                continue
            if entry.state.ended:
                new[run_id] = entry
        runs.append((folder, entry))
    if len(new) > MOST_NEW:
        _keep(store, {folder.path.name: entry for folder, entry in runs if entry.state.ended})
    return sorted(runs, key=lambda run: (second(run[1].id), run[1].created)), damaged


def _kept(store: Store) -> Mapping[str, RunEntry]:
    """The kept entries by run id; none if there is no file, or another version of orch wrote it."""
    try:
        content = json_object(store.path / FILE)
        if content["version"] != VERSION:
            return {}
        return {row[0]: _entry(*row) for row in content["runs"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _entry(run_id: str, launcher: LauncherName, state: str, *columns: Any) -> RunEntry:  # see `_keep`
    created, ended, message, note, sweep, tags = columns
    return RunEntry(run_id, launcher, RunState(state), created, ended, message, note, sweep, tuple(tags))


def _keep(store: Store, entries: Mapping[str, RunEntry]) -> None:
    """Write the entries; a full disk does not matter, since the records have them."""
    with suppress(OSError):
        rows = [astuple(entry) for entry in entries.values()]
        write_file(store.path / FILE, json.dumps({"version": VERSION, "runs": rows}), sync=False)
