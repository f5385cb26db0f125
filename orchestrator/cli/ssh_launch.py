"""`orch ssh-launch`: launch a run over SSH, or on this machine."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.console import ProgressLine, print_text
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
    program: tuple[str, ...] | None, *, dry_run: bool, query: bool, follow: bool, watched: WatchedLines, **typed: Any
) -> int:
    """
    Start a run over SSH, or on this machine (transport local).

    Without -- PROGRAM the shared trainer runs, with KEY=VALUE settings.
    """
    arguments = LaunchArguments("ssh", program=program, **typed)
    return launch_over_ssh(arguments, dry_run=dry_run, query=query, follow=follow, watched=watched)


def launch_over_ssh(
    arguments: LaunchArguments, *, dry_run: bool, query: bool, follow: bool, watched: WatchedLines
) -> int:
    """Let the owner of the run plan and start it, and watch it or print its id; returns the exit code."""
    if dry_run or query:
        from orchestrator.cli.launch import launch  # the owner imports what a launch needs

        return launch(arguments, dry_run=dry_run, query=query, follow=follow, watched=watched)
    from orchestrator.cli.watch import show  # while the owner imports its modules
    from orchestrator.usecases.owner.viewer import Owner, no_note  # as above

    with Owner.of_launch(arguments, follow=follow, watched=watched) as owner:
        with ProgressLine() as progress:
            on_note = no_note if watched.quiet else progress.inform
            run = owner.until_launched(progress.warn, progress.warn, progress.update, on_note)
        if follow:
            return show(run, owner, watched)
    print_text(f"{run}\n")
    return 0
