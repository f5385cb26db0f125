"""`orch stop`: end a run on every node."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import inform, print_text, warn
from orchestrator.errors import CTRL_C, UsageError
from orchestrator.records.runs import all_runs, is_sweep
from orchestrator.usecases.durations import seconds


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completion.runs)
@options.inventory_option("Find the run on these nodes: its record is gone, or elsewhere.")
@click.option("--all", "is_for_all", is_flag=True, help="End all runs recorded here that have not ended.")
@click.option("--save", is_flag=True, help="Let the ranks save before, by SIGUSR2, as before a time limit of Slurm.")
@click.option(
    "--grace", metavar="SPAN", help="With --save: the time that the ranks have to save and end; default: 10m."
)
def stop(run: str | None, inventory: str | None, *, is_for_all: bool, save: bool, grace: str | None) -> int:
    """End a run on every node. Without RUN: the only run that has not ended."""
    if grace is not None and not save:
        raise UsageError("--grace is for --save", hint=f"orch stop --save --grace {grace}")
    if save and (is_for_all or inventory is not None):
        raise UsageError("--save is for one run that is recorded here", hint="orch stop RUN --save")
    if save:
        return _save(run, None if grace is None else seconds("--grace", grace))
    if is_for_all and (run is not None or inventory is not None):
        raise UsageError("--all ends every run recorded here, so RUN and -i cannot be given with it")
    if is_for_all:
        from orchestrator.usecases.launch.sweep import stop_all  # imports Slurm's modules

        for problem in all_runs()[1]:
            warn(f"{problem}; if that run is alive, it is not ended")
        records = stop_all(inform)
        for record in records:
            inform(record.outcome)
        if not records:
            inform("all runs recorded here have ended")
    elif inventory is not None:
        from orchestrator.usecases.runs.stop import stop_on_nodes

        inform(stop_on_nodes(run, inventory, inform, warn).outcome)
    else:
        _stop_recorded(run)
    return 0


def _save(run: str | None, grace_s: float | None) -> int:
    """Let a run save, stop it, and print its state; None for the default grace."""
    if run is not None and is_sweep(run):
        raise UsageError(f"{run} is a sweep, and --save is for one run", hint=f"orch list --sweep {run} lists its runs")
    from orchestrator.usecases.runs.save import DEFAULT_GRACE_S, save_and_stop
    from orchestrator.usecases.runs.stop import run_to_stop

    folder = run_to_stop(run)
    try:
        inform(save_and_stop(folder, DEFAULT_GRACE_S if grace_s is None else grace_s, inform).outcome)
    except KeyboardInterrupt:
        run_id = folder.path.name
        inform(f"the ranks save and end without this command; `orch stop {run_id}` ends them at once")
        return CTRL_C
    return 0


def _stop_recorded(run: str | None) -> None:
    """Stop a run or a sweep, and print its state; None for the only run that has not ended."""
    if run is not None and is_sweep(run):
        from orchestrator.cli.sweep import stop_runs  # imports Slurm's modules

        stop_runs(run)
        return
    from orchestrator.usecases.runs import stop as action

    try:
        folder = action.run_to_stop(run)
    except action.SeveralRuns as several:
        if len(several.choices) > action.MOST_LISTED or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        _stop_recorded(_chosen(several.choices))
        return
    had_ended = action.has_ended(folder)
    outcome = action.stop(folder, inform).outcome
    inform(f"{outcome} (it had already ended)" if had_ended else outcome)


def _chosen(choices: Sequence[tuple[str, str]]) -> str:
    """The run or sweep that the user chooses at the terminal; UsageError if the answer names none of them."""
    for number, (name, described) in enumerate(choices, start=1):
        inform(f"{number}  {name}   {described}")
    print_text("orch: which one is to end? (number; Enter: none) ", sys.stderr)
    names = {str(number): name for number, (name, _) in enumerate(choices, start=1)}
    answer = sys.stdin.readline().strip()
    if answer not in names:
        raise UsageError("none was chosen, and nothing is ended", hint="orch stop RUN, or orch stop --all")
    return names[answer]
