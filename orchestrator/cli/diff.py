"""`orch diff`: print the differences of two runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import inform, print_json, print_table
from orchestrator.usecases.reports import diff as action
from orchestrator.usecases.reports.diff import Difference, RecordedRun


@click.command()
@click.argument("first", metavar="RUN", shell_complete=completion.runs)
@click.argument("second", metavar="RUN", shell_complete=completion.runs)
@options.as_json
def diff(first: str, second: str, *, as_json: bool) -> int:
    """Show the differences of two runs: code, command, environment, nodes, versions, inventory, results."""
    runs = RecordedRun.find(first), RecordedRun.find(second)
    differences = action.diff(*runs)
    ids = [run.record.id for run in runs]
    if as_json:
        print_json({"runs": ids, "differences": [difference.to_json() for difference in differences]})
    elif differences:
        rows = [(row.topic, row.name, _text(row.first), _change(row)) for row in differences]
        print_table(("", "", *ids), rows)
    else:
        inform(f"the records of {ids[0]} and {ids[1]} do not differ")
    return 0


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _change(row: Difference) -> str:
    """The second value; for a result also its change in per cent."""
    text = _text(row.second)
    pair: Sequence[object] = (row.first, row.second)
    if row.topic == "results" and isinstance(row.first, float) and isinstance(row.second, float) and all(pair):
        return f"{text} ({row.second / row.first - 1:+.1%})"
    return text
