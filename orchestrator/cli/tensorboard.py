"""`orch tensorboard`: show the training curves of a run in a browser on this machine."""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.console import ProgressLine, inform, print_text


@click.command()
@options.run
@click.option(
    "--port",
    type=options.WholeNumber(0, 65535),
    metavar="N",
    help="Port on this machine; default: 6006, or a free one.",
)
def tensorboard(run: str, port: int | None) -> int:
    """Start TensorBoard on the head node of a run, for a browser on this machine. Ctrl-C ends it."""
    from orchestrator.usecases.reports.tensorboard import serve

    with ProgressLine() as progress:

        def show(text: str) -> None:
            progress.end()
            print_text(f"{text}\n")
            inform("Ctrl-C ends it")

        try:
            serve(run, port, on_ready=show, on_progress=progress.update)
        except KeyboardInterrupt:
            inform("ended")
    return 0
