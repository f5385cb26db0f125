"""`orch ssh-launch`: launch a run over SSH, or on this machine."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.launch import launch
from orchestrator.usecases.launch_arguments import LaunchArguments, WatchedLines


@click.command(cls=options.LaunchCommand)
@options.launch
@options.max_retries
@options.elastic
@options.dry_run
@options.query
@options.watch
@click.option("--orphan-timeout", metavar="SPAN", help="End the ranks after this time without a supervisor.")
@click.option(
    "--isolation-timeout", metavar="SPAN", help="End the ranks of a node that is cut off for this time (60s)."
)
@options.wait_for_nodes
@options.share
@options.wait_free
def ssh_launch(
    program: tuple[str, ...] | None,
    *,
    dry_run: bool,
    query: bool,
    follow: bool,
    watched: WatchedLines,
    **typed: Any,
) -> int:
    """
    Start a run over SSH, or on this machine (transport local).

    Without -- PROGRAM the shared trainer runs, with KEY=VALUE settings.
    """
    arguments = LaunchArguments("ssh", program=program, **typed)
    return launch(arguments, dry_run=dry_run, query=query, follow=follow, watched=watched)
