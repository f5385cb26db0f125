"""`orch logs`: the lines of all ranks of all nodes as one log, filtered; during the run and after it."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.console import LogView, ProgressLine, inform, print_error, warn
from orchestrator.errors import CTRL_C, NodesError, UsageError

if TYPE_CHECKING:
    from orchestrator.usecases.reports.logs import Recorded  # at run time it would load what reads the nodes


@click.command()
@options.run
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the run ends.")
@options.nodes_of_run("Only these nodes.")
@click.option("--rank", "ranks", metavar="LIST", help="Only these ranks, as in 3 or 0-7.")
@click.option("--grep", "pattern", metavar="RE", help="Only lines that match.")
@click.option("--tail", type=options.WholeNumber(min=0), metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="SPAN", help="Only the last 30s, 5m, 2h, 1d.")
@click.option("--stream", metavar="out|err|event|batch", help="Only this stream.")
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
    from orchestrator.usecases.launch.watch import Watch
    from orchestrator.usecases.reports.log_reader import LogReader
    from orchestrator.usecases.reports.logs import (
        Filter,
        batch_log,
        find_on_nodes,
        lines_without_nodes,
        missing_logs,
        recorded_run,
        selection,
    )

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
            chosen = selection(lines, plan, time.time(), has_routine=as_json, has_rank_metrics=shows_all)
            if lines.stream == "batch":
                view.write(batch_log(launcher, chosen, tail))
                return 0
            try:
                with progress:
                    reader = LogReader(launcher, plan, view, chosen, only_wanted_nodes=not follow, is_live=is_live)
            except NodesError as unreachable:
                found = lines_without_nodes(folder, unreachable, chosen, tail)
                return _print_known(found, unreachable, view, follow=follow)
            reader.past(tail=tail, unfinished=not follow)
            if not follow and not reader.has_every_agent and lines == Filter():
                view.write(batch_log(launcher, chosen, tail))  # the job may have failed before it started that agent
            if follow:
                record = Watch(folder, launcher, reader, view, ends_failed=False).to_end()
                view.close()
                inform(record.outcome)
    except KeyboardInterrupt:
        command = f": orch status {plan.run_id}" if folder.is_recorded else ""
        inform(f"stopped watching; the run continues unless it has ended{command}")
        return CTRL_C
    if missing := missing_logs(folder, plan, reader):
        print_error(missing)
    if not reader.unreadable:
        return missing.exit_code if missing else 0
    error = NodesError(list(reader.unreadable.values()), reader.folder_count)
    print_error(error)
    return error.exit_code


def _print_known(found: Recorded, unreachable: NodesError, view: LogView, *, follow: bool) -> int:
    """Print the lines that are known although no node can be reached; return the exit code."""
    view.write(found.lines)
    if found.is_newest and not follow:
        warn(found.remark)
        return 0
    if found.remark:
        inform(found.remark)
    print_error(unreachable)
    return unreachable.exit_code
