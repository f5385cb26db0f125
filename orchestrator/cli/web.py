"""`orch web`: the runs of this machine in a browser, or the page of one run as a file."""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import inform, print_text
from orchestrator.cli.failure import failure_lines
from orchestrator.cli.overview_text import values
from orchestrator.cli.top_frame import COLUMNS, rows
from orchestrator.errors import UsageError
from orchestrator.records.runs import find_run, home_store

if TYPE_CHECKING:
    from orchestrator.web.run_page import Wording  # imports what queries nodes

MOST_PORT = 65535


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=completion.runs)
@click.option(
    "--port", type=options.WholeNumber(0, MOST_PORT), metavar="N", help="Port on this machine; default: a free one."
)
@click.option("--export", type=options.PATH, metavar="FILE.html", help="Write the page of RUN as one file instead.")
def web(run: str | None, *, port: int | None, export: Path | None) -> int:
    """Show runs in a browser: state, curves of loss and rate, nodes, log; live during the run."""
    from orchestrator.web.run_page import Wording

    wording = Wording(values, rows, tuple(COLUMNS), failure_lines)
    if export is not None:
        if port is not None:
            hint = "--export writes a file, and starts no server"
            raise UsageError("--export and --port exclude each other", hint=hint)
        return _export(run or "latest", export, wording)
    from orchestrator.web.server import WebServer

    path = "/" if run is None else f"/run/{find_run(run).path.name}"
    with closing(WebServer(home_store(), wording, port or 0)) as server:
        print_text(f"{server.url(path)}\n")
        tunnel = f"{server.server_port}:127.0.0.1:{server.server_port} {socket.gethostname()}"
        inform(f"opens in one browser, once; from another machine, there: ssh -N -L {tunnel}; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _export(run: str, file: Path, wording: Wording) -> int:
    from orchestrator.web.run_page import RunPage, write_page

    if not file.parent.is_dir() or (file.exists() and not file.is_file()):
        reason = "this is no regular file" if file.parent.is_dir() else f"{file.parent} is no folder"
        raise UsageError(f"--export {file}: {reason}", hint="as in --export run.html")
    folder = find_run(run)
    write_page(file, RunPage(folder, wording, may_prompt=True))
    inform(f"wrote {file}: run {folder.path.name} as it is now, readable for you alone")
    return 0
