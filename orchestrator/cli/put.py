"""`orch put`: send files and folders to the nodes."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.console import ProgressLine, print_text


@click.command()
@options.inventory
@options.nodes
@click.option("--to", "folder", metavar="DIR", help="Folder on the nodes; default: the workdir of each node.")
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="PATH...")
def put(inventory: str | None, nodes: str | None, folder: str | None, paths: tuple[Path, ...]) -> int:
    """Send files and folders to the nodes. A cut transfer continues when the command is repeated; equal files are not sent."""
    from orchestrator.usecases.put import put as send

    with ProgressLine() as progress:
        sent, failure = send(inventory, nodes, paths, folder, on_progress=progress.update, on_remark=progress.inform)
    for found in sent:
        print_text(f"{found.nodes}: {found.folder}\n")
    if failure:
        raise failure
    return 0
