"""`orch check`: query all nodes before a job; print a table of them and one line for each finding."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import options
from orchestrator.cli.console import inform, print_error, print_json, print_table, print_text, without_controls
from orchestrator.errors import CTRL_C, OrchError, PreflightRefused
from orchestrator.node.number_text import counted
from orchestrator.portable.findings import Severity

if TYPE_CHECKING:
    from orchestrator.usecases.checks.check import Checked


@click.command()
@options.inventory
@options.nodes
@click.option(
    "--level",
    type=click.Choice(("quick", "full")),
    default="quick",
    help="full also imports torch and the like, and measures devices, nodes and links.",
)
@options.skip
@options.as_json
def check(inventory: str | None, nodes: str | None, skipped: Sequence[str], *, level: str, as_json: bool) -> int:
    """Check the nodes before a job. Ends with 3 if a check failed."""
    from orchestrator.usecases.checks.check import COLUMNS, check_nodes
    from orchestrator.usecases.trials import full_check

    is_full = level == "full"
    if is_full:
        full_check.require_measurements(skipped)
    checked, results = check_nodes(inventory, nodes, skipped, imports_stacks=is_full), None
    if is_full:
        checked, results = _measured(checked, inventory)
    if as_json:
        print_json({**checked.to_json(), **({"measurements": results} if is_full else {})})
    else:
        print_table(COLUMNS, list(checked.rows()))
        if rows := [] if results is None else list(full_check.bandwidth_rows(checked, results)):
            print_table(full_check.BANDWIDTH_COLUMNS, rows)
        lines = [*(finding.report() for finding in checked.findings), _summary(checked)]
        print_text(without_controls("\n".join(lines)) + "\n")
    return PreflightRefused.exit_code if checked.has_failed else 0


def _measured(checked: Checked, inventory: str | None) -> tuple[Checked, dict[str, Any] | None]:
    """Measure the nodes that passed; returns the result of both levels, and the measurements."""
    from orchestrator.cli.measure import measure
    from orchestrator.usecases.trials import full_check

    begun_s, results = time.monotonic(), None
    launch = full_check.benchmark_arguments(inventory, checked)
    if launch is not None:
        inform(f"measuring {launch.nodes}; Ctrl-C stops watching")
        try:
            code, results = measure(launch, quiet=True, has_lines=False)
        except OrchError as exc:
            print_error(exc)
        else:
            if code == CTRL_C:
                raise KeyboardInterrupt
    return full_check.with_measurements(checked, results, time.monotonic() - begun_s), results


def _summary(checked: Checked) -> str:
    counts = Counter(finding.severity for finding in checked.findings)
    found = [f"{counts[severity]} {severity.value}" for severity in Severity if counts[severity]]
    skipped = f"; skipped: {', '.join(checked.skipped)}" if checked.skipped else ""
    nodes = counted(len(checked.cluster.expected), "node")
    return f"{nodes} in {checked.seconds:.1f} s: {', '.join(found) or 'no finding'}{skipped}"
