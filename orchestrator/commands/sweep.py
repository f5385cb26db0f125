"""`orch submit --sweep` submits the runs of a sweep; `orch list --sweep` compares them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.actions import transcript
from orchestrator.actions.refresh import bring_up_to_date
from orchestrator.actions.request import LaunchArguments
from orchestrator.actions.runs import readable_runs
from orchestrator.actions.sweep import of_sweep, plan_sweep, submit
from orchestrator.console import inform, print_json, print_table, print_text, warn
from orchestrator.run import RunRecord

COMPARED = ("steps", "first_loss", "last_loss", "tokens_per_s")


def submit_sweep(arguments: LaunchArguments, axes: Sequence[str], *, dry_run: bool) -> int:
    """Plan all runs, then submit them together; prints the id of the sweep."""
    planned = plan_sweep(arguments, axes)
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
    """
    Refresh and compare the runs of a sweep.

    Raises:
        RunNotFound: no sweep here, or more than one, has the name.
    """
    warnings = bring_up_to_date()
    runs, damaged = readable_runs()
    for warning in warnings + damaged:
        warn(warning)
    records = of_sweep(name, [record for _, record in runs])
    if as_json:
        print_json([record.to_json() for record in records])
        return 0
    swept = list(records[0].swept)
    rows = [_row(record, swept) for record in records]
    print_table(("RUN", "STATE", *map(str.upper, swept), *(name.upper().replace("_", " ") for name in COMPARED)), rows)
    return 0


def _row(record: RunRecord, swept: Sequence[str]) -> tuple[object, ...]:
    results = [record.summary.get(name) for name in COMPARED]
    cells = [f"{value:.4g}" if isinstance(value, float) else value for value in results]
    return record.id, record.state.value, *(record.swept[key] for key in swept), *cells
