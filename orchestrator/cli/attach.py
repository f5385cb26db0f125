"""`orch attach`: start a new supervisor for a run that has lost its supervisor, and watch the run."""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.console import ProgressLine, inform, print_text, warn
from orchestrator.cli.failure import print_failure
from orchestrator.cli.watch import show, watch
from orchestrator.records.runs import find_run
from orchestrator.usecases.launch_arguments import WatchedLines
from orchestrator.usecases.owner.viewer import Owner


@click.command()
@options.run
@options.watch
@click.option(
    "--tail",
    type=options.WholeNumber(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Begin with the last N lines.",
)
@options.wait_for_nodes
def attach(run: str, *, follow: bool, watched: WatchedLines, tail: int, wait_for_nodes: str | None) -> int:
    """Reconnect to a run after a reboot or a killed orch, and watch it."""
    from orchestrator.usecases.launch.attach import attached, end_remaining, plan_wait_for_nodes, require_unsupervised
    from orchestrator.usecases.owner.reporter import start_reporter

    folder = find_run(run)
    record = folder.read()
    if record.state.ended:
        record = end_remaining(folder, inform, warn)
        inform(record.outcome)
        print_failure(record)
        return record.exit_code
    if record.by_scheduler:  # which supervises its jobs itself
        start_reporter(folder)
        if not follow:
            print_text(f"{record.id}\n")
            return 0
        with attached(folder) as launched:
            return watch(launched, watched, tail=tail)
    require_unsupervised(folder)
    if wait_for_nodes is not None:
        plan_wait_for_nodes(folder, wait_for_nodes)
    with Owner.of_run(record.id, follow=follow, watched=watched, tail=tail) as owner:
        with ProgressLine() as progress:
            owner.until_launched(warn, progress.warn, progress.update)
        if follow:
            return show(record.id, owner, watched)
    print_text(f"{record.id}\n")
    return 0
