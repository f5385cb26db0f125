"""`orch stop`: end a run on every node."""

from __future__ import annotations

from orchestrator.actions import stop as action
from orchestrator.actions.runs import all_runs, is_sweep
from orchestrator.console import inform, warn


def stop_all() -> int:
    """Stop all runs recorded here that have not ended, and print their states."""
    from orchestrator.actions.sweep import stop_all  # noqa: PLC0415  imports Slurm's modules

    for problem in all_runs()[1]:
        warn(f"{problem}; if that run is alive, it is not ended")
    records = stop_all(inform)
    for record in records:
        inform(record.outcome)
    if not records:
        inform("all runs recorded here have ended")
    return 0


def stop(run: str | None, inventory: str | None) -> int:
    """Stop the run, found by its record or on the nodes of the inventory, and print its state."""
    if inventory is None and run is not None and is_sweep(run):
        from orchestrator.commands.sweep import stop_runs  # noqa: PLC0415  imports Slurm's modules

        return stop_runs(run)
    if inventory is None:
        record = action.stop(action.run_to_stop(run), inform)
    else:
        record = action.stop_on_nodes(run, inventory, inform, warn)
    inform(record.outcome)
    return 0
