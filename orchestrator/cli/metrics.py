"""`orch metrics`: the values of a run for Prometheus, printed or as a file that node_exporter reads."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.console import inform, print_text, warn
from orchestrator.errors import CTRL_C, UsageError, machine_error
from orchestrator.records.runs import find_run
from orchestrator.usecases.durations import seconds

SUFFIX = ".prom"


@click.command()
@options.run
@click.option(
    "--output", "file", type=options.PATH, metavar="FILE.prom", help="Replace this file, readable for every user."
)
@click.option(
    "--every", "span", metavar="SPAN", help="With --output: replace it after each SPAN, as in 15s, until the run ends."
)
def metrics(run: str, *, file: Path | None, span: str | None) -> int:
    """Print the values of a run for Prometheus, or write them for the textfile collector of node_exporter."""
    interval_s = None
    if span is not None:
        if file is None:
            hint = f"orch metrics --output FILE --every {span}"
            raise UsageError("--every is for a file that is replaced", hint=hint)
        interval_s = seconds("--every", span)
        if interval_s < 1:
            raise UsageError(f"--every {span}: less than one second", hint="as in --every 15s")
    if file is not None:
        _require_writable(file)
    from orchestrator.usecases.reports.prometheus import metrics_text, write_metrics
    from orchestrator.usecases.runs.look import Looks

    looks = Looks(find_run(run))
    overview = looks.look().overview
    if file is None:
        print_text(metrics_text(overview))
        return 0
    write_metrics(file, overview)
    try:
        while interval_s is not None and not overview.is_over:
            time.sleep(interval_s)
            overview = looks.look(may_prompt=False).overview
            try:
                write_metrics(file, overview)
            except OSError as error:  # such as a disk that is full for a while
                warn(str(machine_error(error)))
    except KeyboardInterrupt:
        inform(f"{file} is no longer replaced; run {overview.id} continues")
        return CTRL_C
    return 0


def _require_writable(file: Path) -> None:
    """Raise UsageError for a file that node_exporter would not read, or that cannot be replaced."""
    reason = ""
    if file.suffix != SUFFIX:
        reason = f"node_exporter reads only files whose names end with {SUFFIX}"
    elif not file.parent.is_dir():
        reason = f"{file.parent} is no folder"
    elif file.is_dir():
        reason = "this is a folder"
    elif not os.access(file.parent, os.W_OK):
        reason = f"you have no permission to write to {file.parent}"
    if reason:
        raise UsageError(f"--output {file}: {reason}", hint="as in --output /var/lib/node_exporter/orch.prom")
