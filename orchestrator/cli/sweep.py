"""`orch submit --sweep` submits the runs of a sweep; `orch list --sweep` and `orch status` compare them, `orch stop` ends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.cli.console import inform, print_json, print_table, print_text, warn
from orchestrator.errors import RunNotFound
from orchestrator.records.runs import find_sweep
from orchestrator.run import RunRecord
from orchestrator.usecases.launch import transcript
from orchestrator.usecases.launch.sweep import plan_sweep, stop_sweep, submit
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.reports.diff import RESULTS
from orchestrator.usecases.runs.refresh import bring_up_to_date


def submit_sweep(arguments: LaunchArguments, axes: Sequence[str], at_once: int | None, *, dry_run: bool) -> int:
    """Plan all runs, then submit them together; prints the id of the sweep."""
    planned = plan_sweep(arguments, axes, at_once)
    for warning in planned[0].warnings:
        warn(warning)
    if dry_run:
        print_text("\n".join(transcript.dry_run_text(run.plan) for run in planned))
        return 0
    job = submit(planned, warn)
    sweep = planned[0].record.sweep
    inform(f"{len(planned)} runs are tasks of Slurm job {job}: `orch list --sweep {sweep}` compares them")
    print_text(f"{sweep}\n")
    return 0


def list_sweep(name: str, *, as_json: bool) -> int:
    """Refresh and compare the runs of a sweep, and return 0; RunNotFound if no sweep here, or more than one, has the name."""
    if not find_sweep(name):
        hint = "use the id that the submission of the sweep printed; orch list"
        raise RunNotFound(f"no sweep {name!r}, or more than one", hint=hint)
    for warning in bring_up_to_date():
        warn(warning)
    records = [record for _, record in find_sweep(name)]
    if as_json:
        print_json([record.to_json() for record in records])
        return 0
    swept = list(records[0].swept)
    rows = [_row(record, swept) for record in records]
    print_table(("RUN", "STATE", *map(str.upper, swept), *(name.upper().replace("_", " ") for name in RESULTS)), rows)
    return 0


def sweep_status(name: str, *, as_json: bool) -> int:
    """As list_sweep, but returns the exit code of the first run that has ended badly, once all have ended."""
    list_sweep(name, as_json=as_json)
    records = [record for _, record in find_sweep(name)]
    if not all(record.state.final for record in records):
        return 0
    return next((record.exit_code for record in records if record.exit_code), 0)


def stop_runs(name: str) -> None:
    """Stop all runs of a sweep and print their states."""
    records = stop_sweep(find_sweep(name), inform)
    counts = Counter(record.state.value for record in records)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    inform(f"the {len(records)} runs of sweep {records[0].sweep}: {states}")


def _row(record: RunRecord, swept: Sequence[str]) -> tuple[object, ...]:
    results = [record.summary.get(name) for name in RESULTS]
    cells = [f"{value:.4g}" if isinstance(value, float) else value for value in results]
    return record.id, record.state.value, *(record.swept[key] for key in swept), *cells
