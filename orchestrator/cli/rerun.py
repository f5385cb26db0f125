"""`orch rerun`: launch a recorded run again, changed by its options."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import completion, options
from orchestrator.cli.launch import launch
from orchestrator.cli.ssh_launch import launch_over_ssh
from orchestrator.usecases.launch_arguments import WatchedLines


@click.command(cls=options.PanelCommand)
@click.argument("run", metavar="RUN", shell_complete=completion.runs)
@options.settings
@click.option("--nodes", "--node", "nodes", metavar="LIST", help="Use these nodes instead, as in n0,n[2-5].")
@options.max_retries
@options.env
@options.slurm
@options.wait_for_nodes
@options.share
@options.wait_free
@options.dry_run
@options.query
@options.watch
@click.pass_obj
def rerun(
    program: tuple[str, ...] | None,
    /,
    *,
    run: str,
    settings: tuple[str, ...],
    nodes: str | None,
    dry_run: bool,
    query: bool,
    follow: bool,
    watched: WatchedLines,
    **changed: Any,
) -> int:
    """
    Launch a run again, with its command, inventory and options, but those given here. Reports what has changed since.

    KEY=VALUE replaces a setting of the shared trainer, -- PROGRAM ARGS the program of another run.
    """
    from orchestrator.usecases.launch.rerun import Changes, rerun_arguments

    arguments = rerun_arguments(run, nodes, settings, Changes(program, **changed))
    start = launch_over_ssh if not arguments.by_scheduler else launch
    return start(arguments, dry_run=dry_run, query=query, follow=follow, watched=watched)
