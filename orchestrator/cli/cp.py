"""`orch cp`: copy files of a run from its nodes to this machine."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import ProgressLine, inform, print_text, warn
from orchestrator.cli.numbers import size_text
from orchestrator.errors import UsageError
from orchestrator.node.number_text import counted


@click.command()
@click.argument(
    "source", metavar="RUN:PATH", callback=options.name_chosen_run, shell_complete=completion.found("run_names", ":")
)
@click.argument("destination", type=options.PATH, default=".", metavar="[DIR]")
@options.nodes_of_run("Only from these nodes.")
def cp(source: str, destination: Path, nodes: str | None) -> int:
    """Copy files of a run from its nodes. PATH is relative to the ranks' working folder."""
    from orchestrator.usecases.reports.copy import copy

    run, colon, path = source.partition(":")
    if not colon or not path:
        raise UsageError(f"{source!r} is not RUN:PATH", hint="as in orch cp latest:checkpoints results")
    with ProgressLine() as progress:
        copies = copy(run or "latest", path, destination, nodes, on_progress=progress.update)
    for copied in copies:
        for name in copied.left_out:
            reason = f"an absolute link, one that leads out of {copied.source}, or a special file"
            warn(f"{copied.node}: {name} is not copied: {reason}")
        size = size_text(copied.size_bytes)
        inform(f"{copied.node}: {copied.source}: {counted(copied.files, 'file')}, {size}")
        print_text(f"{copied.target}\n")
    return 0
