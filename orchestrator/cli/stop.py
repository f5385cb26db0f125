"""`orch stop`: end a run on every node."""

from __future__ import annotations

import sys

from orchestrator.actions import stop as action
from orchestrator.cli.console import inform, print_text, warn
from orchestrator.errors import UsageError
from orchestrator.records.runs import all_runs, is_sweep


def stop_all() -> int:
    """Stop all runs recorded here that have not ended, and print their states."""
    from orchestrator.actions.sweep import stop_all  # imports Slurm's modules

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
        from orchestrator.cli.sweep import stop_runs  # imports Slurm's modules

        return stop_runs(run)
    if inventory is not None:
        inform(action.stop_on_nodes(run, inventory, inform, warn).outcome)
        return 0
    try:
        folder = action.run_to_stop(run)
    except action.SeveralRuns as several:
        return stop(_chosen(several), None)
    had_ended = action.has_ended(folder)
    outcome = action.stop(folder, inform).outcome
    inform(f"{outcome} (it had already ended)" if had_ended else outcome)
    return 0


def _chosen(several: action.SeveralRuns) -> str:
    """
    The run or sweep that the user chooses at the terminal.

    Raises:
        SeveralRuns: there is no terminal, or the answer names none of them.
    """
    if len(several.choices) > action.MOST_LISTED or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise several
    for number, (name, described) in enumerate(several.choices, start=1):
        inform(f"{number}  {name}   {described}")
    print_text("orch: which one is to end? (number; Enter: none) ", sys.stderr)
    names = {str(number): name for number, (name, _) in enumerate(several.choices, start=1)}
    answer = sys.stdin.readline().strip()
    if answer not in names:
        raise UsageError("none was chosen, and nothing is ended", hint="orch stop RUN, or orch stop --all")
    return names[answer]
