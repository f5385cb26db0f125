"""`orch check`: query all nodes before a job; print a table of them and one line for each finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.actions.check import COLUMNS, Checked, check_nodes, finding_text
from orchestrator.console import print_json, print_table, print_text, without_controls
from orchestrator.errors import PreflightRefused
from orchestrator.findings import Severity


def check(inventory: str | None, nodes: str | None, skipped: Sequence[str], *, as_json: bool) -> int:
    """Check the nodes and print the findings; returns 3 if a check failed, else 0."""
    checked = check_nodes(inventory, nodes, skipped)
    if as_json:
        print_json(checked.to_json())
    else:
        print_table(COLUMNS, list(checked.rows()))
        lines = [*map(finding_text, checked.findings), _summary(checked)]
        print_text(without_controls("\n".join(lines)) + "\n")
    return PreflightRefused.exit_code if checked.has_failed else 0


def _summary(checked: Checked) -> str:
    counts = Counter(finding.severity for finding in checked.findings)
    found = [f"{counts[severity]} {severity.value}" for severity in Severity if counts[severity]]
    skipped = f"; skipped: {', '.join(checked.skipped)}" if checked.skipped else ""
    return (
        f"{len(checked.cluster.expected)} nodes in {checked.seconds:.1f} s: {', '.join(found) or 'no finding'}{skipped}"
    )
