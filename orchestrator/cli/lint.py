"""`orch lint`: findings by file and line, or the mended files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import inform, print_json, print_text, without_controls
from orchestrator.errors import PreflightRefused
from orchestrator.node.number_text import counted

if TYPE_CHECKING:
    from orchestrator.usecases.checks.lint import LintResult

_LEVELS = ("FAIL", "WARN", "INFO")


@click.command()
@options.inventory
@click.argument("files", nargs=-1, type=options.PATH, metavar="[FILE]...")
@click.option(
    "--node",
    "--nodes",
    "nodes",
    metavar="LIST",
    shell_complete=completion.nodes_of_inventory,
    help="Lint the variables that these nodes have, with their versions.",
)
@click.option(
    "--nccl", metavar="VERSION", help="Version of NCCL, as in 2.21; default: report for which ones it is wrong."
)
@click.option(
    "--torch", metavar="VERSION", help="Version of torch, as in 2.4; default: report for which ones it is wrong."
)
@click.option(
    "--network", type=click.Choice(("infiniband", "roce", "ethernet")), help="Default: that of the inventory."
)
@click.option("--fix", is_flag=True, help="Print the mended files instead of the findings; nothing is written.")
@options.as_json
def lint(
    inventory: str | None, files: tuple[Path, ...], nodes: str | None, *, as_json: bool, fix: bool, **stated: str | None
) -> int:
    """
    Find wrong, useless and misspelt environment variables in inventories, scripts, documents, environment files, nccl.conf and DeepSpeed JSON.

    Without FILE, the inventory is linted.
    """
    from orchestrator.usecases.checks import lint as action

    result = action.lint(inventory, files, action.LintOptions(**stated), nodes=nodes)
    counts = Counter(found.finding.severity.value for found in result.findings)
    if as_json:
        print_json({"files": list(result.files), "findings": [found.to_json() for found in result.findings]})
    elif fix:
        several = len(result.fixed) > 1
        print_text("".join(f"# {file}\n{text}" if several else text for file, text in result.fixed.items()))
    else:
        print_text("".join(f"{without_controls(line)}\n" for line in _report(result)))
        summary = ", ".join(f"{counts[level]} {level}" for level in _LEVELS if counts[level]) or "no findings"
        inform(f"{counted(len(result.files), 'file')}: {summary}")
    return PreflightRefused.exit_code if counts["FAIL"] else 0  # docs/decisions/041


def _report(result: LintResult) -> Iterator[str]:
    """One paragraph per file, one entry per finding."""
    for file in result.files:
        found_here = [found for found in result.findings if found.file == file]
        if found_here:
            yield file
        width = max((len(str(found.line)) for found in found_here), default=0)
        for found in found_here:
            finding = found.finding
            nodes = f" ({found.nodes_text()})" if finding.nodes else ""
            yield f"  {found.line or '':>{width}}  {finding.severity.value}  {finding.text}{nodes}"
            source = f" ({finding.source})" if finding.source else ""
            next_step = f"next: {finding.remedy}{source}" if finding.remedy else source.strip()
            if next_step:
                yield f"{' ' * (width + 10)}{next_step}"
