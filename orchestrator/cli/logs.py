"""`orch logs`: the lines of all ranks of all nodes as one log, filtered; during the run and after it."""

from __future__ import annotations

from contextlib import closing

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import LogView, ProgressLine, inform, print_error, warn
from orchestrator.errors import CTRL_C, UsageError


@click.command()
@options.run
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the run ends.")
@options.nodes_of_run("Only these nodes.")
@click.option("--rank", "ranks", metavar="LIST", help="Only these ranks, as in 3 or 0-7.")
@click.option("--grep", "pattern", metavar="RE", help="Only lines that match.")
@click.option("--tail", type=options.WholeNumber(min=0), metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="SPAN", help="Only the last 30s, 5m, 2h, 1d.")
@click.option(
    "--stream",
    metavar="out|err|event|batch",
    shell_complete=completion.words("out", "err", "event", "batch"),
    help="Only this stream.",
)
@options.fold
@options.all_ranks
@options.timestamps
@options.inventory_option("Find the run on these nodes: it was launched elsewhere.")
@options.as_json
def logs(
    run: str,
    inventory: str | None,
    *,
    follow: bool,
    tail: int | None,
    fold: bool | None,
    all_ranks: bool,
    timestamps: bool,
    as_json: bool,
    **wanted: str | None,
) -> int:
    """Print the merged log of all nodes and ranks."""
    from orchestrator.usecases.launch.show_logs import show_logs
    from orchestrator.usecases.reports.logs import Filter, find_on_nodes, recorded_run

    if as_json and (fold or timestamps):
        hint = "--json prints each line with its time, node and rank"
        raise UsageError(f"{'--fold' if fold else '--timestamps'} and --json exclude each other", hint=hint)
    is_live = follow and not as_json and options.is_live()
    progress = ProgressLine()
    if inventory is None:
        folder, launcher = recorded_run(run, progress.update)
    else:
        folder, launcher = find_on_nodes(run, inventory, inform, warn)
    plan, lines = folder.read_plan(), Filter(**wanted)
    # a filter shows all of the lines that it selects
    shows_all = not follow or as_json or all_ranks or lines != Filter()
    folds = is_live and not shows_all and plan.world_size > 1 if fold is None else fold
    ranks_of = plan.rank_counts() if folds else None
    try:
        with (
            closing(launcher),
            closing(LogView(as_json=as_json, ranks_of=ranks_of, timestamps=timestamps, is_live=is_live)) as view,
        ):
            shown = show_logs(
                folder,
                launcher,
                view,
                lines,
                tail=tail,
                follow=follow,
                has_routine=as_json,
                has_rank_metrics=shows_all,
                is_live=is_live,
                connecting=progress,
            )
            if shown.record is not None:
                view.close()
                inform(shown.record.outcome)
    except KeyboardInterrupt:
        command = f": orch status {plan.run_id}" if folder.is_recorded else ""
        inform(f"stopped watching; the run continues unless it has ended{command}")
        return CTRL_C
    for error in shown.errors:
        print_error(error)
    return shown.errors[-1].exit_code if shown.errors else 0
