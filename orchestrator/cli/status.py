"""`orch status`: refresh the record of a run and print its state."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.colours import with_coloured_cells
from orchestrator.cli.columns import cut
from orchestrator.cli.console import (
    ProgressLine,
    has_colour,
    inform,
    left_text,
    print_error,
    print_json,
    print_table,
    print_text,
    warn,
    without_controls,
)
from orchestrator.cli.failure import print_failure
from orchestrator.cli.overview_text import headline, summary
from orchestrator.cli.tables import table_lines
from orchestrator.errors import CTRL_C, UsageError
from orchestrator.node.number_text import format_numbers
from orchestrator.records.runs import find_run, is_sweep
from orchestrator.usecases.durations import clock

if TYPE_CHECKING:
    from orchestrator.usecases.runs.look import Look, Looks

COLUMNS = ("NODE", "RANKS", "AGENT", "STEP", "PHASE", "SEEN")
LEAST_S, MOST_S = 0.5, 86400.0


def _interval(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        raise UsageError(f"--watch {text}: not a number of seconds", hint=f"orch status {text} --watch") from None
    if not LEAST_S <= seconds <= MOST_S:
        raise UsageError(f"--watch {text}: not a number of seconds from {LEAST_S:g} to {MOST_S:g}", hint="--watch 5")
    return seconds


@click.command()
@options.run
@click.option(
    "--watch",
    is_flag=False,
    flag_value="5",
    metavar="[SECONDS]",
    callback=_interval,
    help="Look every 5 (or SECONDS) seconds until the run ends; after RUN.",
)
@options.as_json
def status(run: str, *, watch: float | None, as_json: bool) -> int:
    """Show the state of a run; ends with the run's exit code."""
    if watch is not None and as_json:
        raise UsageError("--watch and --json exclude each other", hint="orch status --json prints one look")
    if is_sweep(run):
        from orchestrator.cli.sweep import sweep_status  # imports Slurm's modules

        return sweep_status(run, as_json=as_json)
    from orchestrator.usecases.runs.look import Looks

    looks = Looks(find_run(run))
    if watch is not None:
        return _watch(looks, watch)
    with ProgressLine() as progress:
        look = looks.look(progress.update)
    if as_json:
        refreshed = look.refreshed
        nodes = [asdict(node) for node in refreshed.nodes]
        failures = look.missing.failures if look.missing else ()
        missing = [{"node": failure.node, "reason": failure.reason} for failure in failures]
        findings = [finding.to_json() for finding in refreshed.findings()]
        queue = None
        if refreshed.status is not None and refreshed.queue is not None:
            queue = asdict(refreshed.queue) | {"position": refreshed.status.position}
        answers = {"nodes": nodes, "missing": missing, "queue": queue, "findings": findings}
        print_json(refreshed.record.to_json() | answers | {"overview": look.overview.to_json()})
    else:
        _print(look)
    return _exit_code(look)


def _exit_code(look: Look) -> int:
    """Report the nodes that did not answer; return the run's exit code, or that of these nodes if the run has not ended."""
    record, missing = look.refreshed.record, look.missing
    if missing is None:
        return record.exit_code
    if record.state.final:
        warn(str(missing))
        return record.exit_code
    print_error(missing)
    return missing.exit_code  # although the other nodes are shown


def _watch(looks: Looks, interval_s: float) -> int:
    """Look until the run ends: on a terminal on one screen that is rewritten, elsewhere one text after the other."""
    from orchestrator.cli.screen import Screen

    look: Look | None = None
    try:
        with Screen(sys.stdout) if sys.stdout.isatty() else nullcontext() as screen:
            while True:
                look = looks.look()
                if screen is not None:
                    width, height = screen.size
                    screen.draw([cut(line, width) for line in _lines(look)[:height]])
                elif not look.overview.is_over:
                    print_text("\n".join(_lines(look)) + "\n\n")
                if look.overview.is_over:
                    break
                if screen is not None:
                    screen.keys(interval_s)
                else:
                    time.sleep(interval_s)
    except KeyboardInterrupt:
        if look is not None and sys.stdout.isatty():
            print_text("\n".join(_lines(look)) + "\n")
        inform("stopped watching; the run continues")
        return CTRL_C
    _print(look)
    return _exit_code(look)


def _print(look: Look) -> None:
    refreshed = look.refreshed
    first, *more = _head(look)
    print_text("\n".join([with_coloured_cells(first) if has_colour(sys.stdout) else first, *more, ""]))
    print_failure(refreshed.record, sys.stdout)
    for text in _warnings(look):
        warn(text)
    if rows := _rows(look):
        print_table(COLUMNS, rows)
    print_text("".join(f"{line}\n" for line in _ready(look)))


def _lines(look: Look) -> list[str]:
    """All of it as lines, for a screen."""
    rows = [["" if cell is None else without_controls(str(cell)) for cell in row] for row in _rows(look)]
    table = ["", *table_lines(COLUMNS, rows)] if rows else []
    return [*_head(look), *(f"warning: {without_controls(text)}" for text in _warnings(look)), *table, *_ready(look)]


def _head(look: Look) -> list[str]:
    more = _more(look).splitlines()
    return [headline(look.overview), *summary(look.overview), *map(without_controls, more)]


def _warnings(look: Look) -> Iterator[str]:
    yield from look.refreshed.warnings()
    recorded = (look.refreshed.record.replicas, look.refreshed.record.slow)
    for finding in look.overview.findings:
        if finding.text not in recorded:  # which are among the lines above
            yield finding.text + (f" (for {clock(finding.age_s)})" if finding.age_s is not None else "")


def _rows(look: Look) -> list[tuple[object, ...]]:
    """The nodes, with the newest progress that a rank reported; of a node that does not answer, the last known one."""
    rows: list[tuple[object, ...]] = []
    for node in look.overview.nodes:
        newest = min(node.ranks, key=lambda rank: math.inf if rank.age_s is None else rank.age_s, default=None)
        step = phase = age_s = None
        if newest is not None:
            step = newest.step if newest.steps is None else f"{newest.step}/{newest.steps}"
            phase, age_s = newest.phase, newest.age_s
        age_s = node.age_s if age_s is None else age_s
        ranks = format_numbers(rank.rank for rank in node.ranks)
        state = "no answer" if node.problem else node.agent
        rows.append((node.node, ranks, state, step, phase, age_s if age_s is None else f"{clock(age_s)} ago"))
    return rows


def _ready(look: Look) -> list[str]:
    progress = [of_rank for node in look.refreshed.nodes for of_rank in node.progress.values()]
    return list(map(without_controls, sorted({str(report["ready"]) for report in progress if "ready" in report})))


def _more(look: Look) -> str:
    """The values of the record and the scheduler that are not in the overview."""
    refreshed = look.refreshed
    record, queue = refreshed.record, refreshed.queue
    is_of_queue = queue is not None and record.message == queue.why
    is_repeated = record.message is not None and (record.message in look.overview.verdict or is_of_queue)
    lines = [] if is_repeated or not record.message else [record.message]
    if queue is not None and refreshed.job:
        lines.append(refreshed.job)
        if queue.partition:
            nodes = f"{queue.node_count} ({queue.nodes})" if queue.nodes else queue.node_count
            lines.append(f"partition {queue.partition}  nodes {nodes}  elapsed {queue.elapsed} of {queue.limit}")
    elif record.slurm_job:
        lines.append(f"Slurm job {record.slurm_job}")
    lines += [f"attempt {ended['attempt']} failed: {ended['message']}" for ended in record.attempts]
    if record.attempts:
        state = "is the last" if record.state.final else "has failed" if refreshed.waits else "runs"
        lines.append(f"attempt {record.attempt} {state}")
    if record.exit is not None:
        lines.append(f"first failure: {record.exit}")
    found = {"replicas": record.replicas, "slow": record.slow}
    lines += [f"{name}: {text}" for name, text in found.items() if text]
    lines += [left_text(record)] if record.left else []
    if record.tags:
        lines.append(f"tags: {', '.join(record.tags)}")
    if record.note:
        lines.append(f"note: {record.note}")
    if record.summary:
        lines.append("  ".join(f"{name}={value}" for name, value in record.summary.items()))
    return "\n".join(lines)
