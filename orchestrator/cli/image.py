"""`orch image push`."""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.console import ProgressLine, inform
from orchestrator.cli.groups import Group


@click.group(cls=Group)
def image() -> None:
    """Send container images to the nodes."""


@image.command()
@options.inventory
@options.nodes
@click.option("--to", "folder", metavar="DIR", help="Where the archive lies until it is loaded; default: the workdir.")
@click.argument("image", metavar="IMAGE|FILE.tar")
def push(inventory: str | None, nodes: str | None, folder: str | None, image: str) -> int:
    """Send an image of this machine, or a file of docker save, to the nodes that lack it, and load it there."""
    from orchestrator.usecases.image import push as send

    with ProgressLine() as progress:
        pushed, failure = send(inventory, nodes, image, folder, on_progress=progress.update, on_remark=progress.inform)
    if pushed.already:
        inform(f"{pushed.already}: {pushed.image} was there already")
    if pushed.nodes:
        inform(f"{pushed.nodes}: {pushed.image}")
    if failure:
        raise failure
    return 0
