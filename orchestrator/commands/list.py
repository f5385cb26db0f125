"""`orch list`: print the records of the runs that were started from this machine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from orchestrator.actions.durations import clock
from orchestrator.actions.refresh import bring_up_to_date
from orchestrator.actions.runs import RunSelection, readable_runs
from orchestrator.console import inform, print_json, print_table, warn
from orchestrator.run import RunRecord, RunState


def list_runs(selection: RunSelection, *, up_to_date: bool, as_json: bool) -> int:
    """Print the selected records, newest last; with `up_to_date`, refresh the unfinished ones first."""
    warnings = bring_up_to_date() if up_to_date else []
    runs, damaged = readable_runs()
    for warning in warnings + damaged:
        warn(warning)
    records = [record for _, record in runs]
    listed = selection.of(records)
    if as_json:
        print_json([record.to_json() for record in listed])
    elif listed:
        _print(listed, newest=records[-1])
    else:
        inform("no run is recorded here" if not records else f"none of the {len(records)} runs is selected")
    return 0


def _print(records: list[RunRecord], *, newest: RunRecord) -> None:
    """Print one line per run; columns for sweeps, tags, notes and messages if a run has any."""
    columns: dict[str, Sequence[str | None]] = {
        "RUN": [f"{record.id} (latest)" if record is newest else record.id for record in records],
        "LAUNCHER": [record.launcher for record in records],
        "STATE": [record.state.value for record in records],
        "AGE": [_age(record) for record in records],
        "TIME": [_duration(record) for record in records],
        "SWEEP": [record.sweep for record in records],
        "TAGS": [" ".join(record.tags) for record in records],
        "NOTE": [_first_line(record.note) for record in records],
        "MESSAGE": [_first_line(record.message) for record in records],
    }
    optional = {"SWEEP", "TAGS", "NOTE", "MESSAGE"}
    shown = {name: cells for name, cells in columns.items() if name not in optional or any(cells)}
    print_table(tuple(shown), list(zip(*shown.values(), strict=True)), cut=("NOTE", "MESSAGE"))


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]


def _age(record: RunRecord) -> str:
    """The time since the launch."""
    created = _time(record.created)
    return "" if created is None else clock((datetime.now(timezone.utc) - created).total_seconds())


def _duration(record: RunRecord) -> str:
    """The time from the launch to the end, or until now; empty if the end is not known."""
    created, ended = _time(record.created), _time(record.ended) if record.ended else datetime.now(timezone.utc)
    if created is None or ended is None or record.state is RunState.LOST:
        return ""
    return clock((ended - created).total_seconds())


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
