"""`orch list`: print the records of the runs that were started from this machine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import inform, print_json, print_table, warn
from orchestrator.records.runs import RunSelection, all_runs, read_runs
from orchestrator.run import RunEntry, RunState
from orchestrator.usecases.durations import clock


@click.command("list")
@click.option("--all", "up_to_date", is_flag=True, help="Query all unfinished runs first.")
@click.option("--last", type=options.WholeNumber(min=1), metavar="N", help="Only the newest N runs.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in RunState], case_sensitive=False),
    help="Only runs in this state; may be repeated.",
)
@options.tags("Only runs with this tag; with each, if repeated.")
@click.option("--sweep", metavar="ID", shell_complete=completion.found("sweeps"), help="Compare the runs of a sweep.")
@options.as_json
def list_(*, sweep: str | None, up_to_date: bool, as_json: bool, **wanted: Any) -> int:
    """List the runs started from this machine, newest last."""
    if sweep is not None:
        from orchestrator.cli.sweep import list_sweep

        return list_sweep(sweep, as_json=as_json)
    warnings = []
    if up_to_date:
        from orchestrator.usecases.runs.refresh import bring_up_to_date

        warnings = bring_up_to_date()
    runs, damaged = all_runs()
    for warning in warnings + damaged:
        warn(warning)
    listed = RunSelection(**wanted).of(runs)
    if as_json:
        print_json([record.to_json() for _, record in read_runs(listed)])
    elif listed:
        _print([entry for _, entry in listed], newest=runs[-1][1])
    else:
        inform("no run is recorded here" if not runs else f"none of the {len(runs)} runs is selected")
    return 0


def _print(entries: list[RunEntry], *, newest: RunEntry) -> None:
    """Print one line per run; columns for sweeps, tags, notes and messages if a run has any."""
    columns: dict[str, Sequence[str | None]] = {
        "RUN": [f"{entry.id} (latest)" if entry is newest else entry.id for entry in entries],
        "LAUNCHER": [entry.launcher for entry in entries],
        "STATE": [entry.state.value for entry in entries],
        "AGE": [_span(entry.created, None) for entry in entries],
        # from the launch to the end, which is not known of a lost run
        "TIME": ["" if entry.state is RunState.LOST else _span(entry.created, entry.ended) for entry in entries],
        "SWEEP": [entry.sweep for entry in entries],
        "TAGS": [" ".join(entry.tags) for entry in entries],
        "NOTE": [entry.note for entry in entries],
        "MESSAGE": [entry.message for entry in entries],
    }
    optional = {"SWEEP", "TAGS", "NOTE", "MESSAGE"}
    shown = {name: cells for name, cells in columns.items() if name not in optional or any(cells)}
    print_table(tuple(shown), list(zip(*shown.values(), strict=True)), cut=("NOTE", "MESSAGE"))


def _span(begin: str, end: str | None) -> str:
    """The time from the begin to the end, or until now without an end; empty if one of them is no time."""
    try:
        ended = datetime.fromisoformat(end) if end else datetime.now(timezone.utc)
        return clock((ended - datetime.fromisoformat(begin)).total_seconds())
    except ValueError:
        return ""
