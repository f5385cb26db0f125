"""`orch submit`: launch a run, or with --sweep several, through Slurm."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import completion, options
from orchestrator.cli.launch import launch
from orchestrator.errors import UsageError
from orchestrator.usecases.launch_arguments import LaunchArguments, WatchedLines


@click.command(cls=options.LaunchCommand)
@options.launch
@options.slurm
@click.option(
    "--after",
    multiple=True,
    metavar="[KIND:]RUN",
    shell_complete=completion.runs,
    help="Start after this run; KIND: afterok (default), afterany, …",
)
@options.max_retries
@options.elastic
@options.dry_run
@options.query
@options.watch
@click.option(
    "--sweep", multiple=True, metavar="KEY=A,B", help="Start one run per combination of the values; may be repeated."
)
@click.option(
    "--at-once", type=options.WholeNumber(min=1), metavar="N", help="Run at most N runs of the sweep at a time."
)
def submit(
    program: tuple[str, ...] | None,
    *,
    dry_run: bool,
    query: bool,
    follow: bool,
    watched: WatchedLines,
    sweep: tuple[str, ...],
    at_once: int | None,
    **typed: Any,
) -> int:
    """
    Start a run through Slurm.

    Without -- PROGRAM the shared trainer runs, with KEY=VALUE settings.
    """
    arguments = LaunchArguments("slurm", program=program, **typed)
    if sweep:
        if query:
            raise UsageError("--query is for a single run", hint="omit --query, or --sweep")
        from orchestrator.cli.sweep import submit_sweep

        return submit_sweep(arguments, sweep, at_once, dry_run=dry_run)
    if at_once is not None:
        raise UsageError("--at-once is for the runs of a sweep", hint="give --sweep KEY=A,B as well, or omit --at-once")
    return launch(arguments, dry_run=dry_run, query=query, follow=follow, watched=watched)
