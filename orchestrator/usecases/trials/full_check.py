"""The full level of a check: the devices, nodes and links of nodes that passed the quick checks, measured by the benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.node.number_text import three_digits
from orchestrator.portable.checks.full import check_results, nominal_rates, rows_by_size
from orchestrator.portable.checks.quick import CHECKS, most_serious_first
from orchestrator.portable.findings import Finding, Severity
from orchestrator.portable.names.hostlist import fold
from orchestrator.usecases.checks.check import Checked
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.trials.benchmark import DEVICES, arguments, size_text

SETTINGS = ("passes=2", "timeout=20")
CARD_SETTINGS = ("sizes=64K:256M:64", "seconds=0.3")
# The network of a CPU is slower than that of cards, and the ranks share the cores.
CPU_SETTINGS = ("sizes=64K:1M:16", "seconds=0.1", "repetitions=100")
BANDWIDTH_COLUMNS = ("SIZE", "PAIRS OF NODES", "SLOWEST", "MEDIAN", "FASTEST GB/S", "OF THE NETWORK'S RATE")
GROUPS = {"all-reduce": "node", "bandwidth": "node-pairs"}


def sound_nodes(checked: Checked) -> list[str]:
    """The nodes that answered and in which no check failed: only they are measured."""
    failed = {node for finding in checked.findings if finding.severity is Severity.FAIL for node in finding.nodes}
    return [node for node in checked.cluster.facts if node not in failed]


def require_measurements(skipped: Sequence[str]) -> None:
    """Raise UsageError if nothing is left to measure."""
    if GROUPS.keys() <= set(skipped):
        raise UsageError(f"--skip {', --skip '.join(GROUPS)}: nothing is left to measure", hint="use --level quick")


def benchmark_arguments(inventory: str | None, checked: Checked) -> LaunchArguments | None:
    """
    The arguments of a launch that measures the sound nodes; None if there is none.

    They are checked already. Skipping every check keeps the network variables, which --no-check leaves out.
    """
    nodes = sound_nodes(checked)
    groups = [group for check, group in GROUPS.items() if check not in checked.skipped]
    if not nodes:
        return None
    by_device = CARD_SETTINGS if any(map(checked.cluster.uses_cards, nodes)) else CPU_SETTINGS
    devices = () if "device" in checked.skipped else (DEVICES,)
    settings = (f"groups={','.join(groups)}", *devices, *SETTINGS, *by_device)
    return replace(arguments(inventory, fold(nodes), None, settings), skipped=tuple(CHECKS))


def with_measurements(checked: Checked, results: Mapping[str, Any] | None, seconds: float) -> Checked:
    """Add the findings of the benchmark, without results if it failed before the first one, to those of the quick checks."""
    nodes = sound_nodes(checked)
    found: list[Finding] = []
    if results is None and nodes:
        text = "the benchmark ended before it measured anything"
        found.append(Finding(Severity.FAIL, "benchmark", text, tuple(nodes), remedy="read its messages above"))
    if results is not None:
        measured = check_results(results, nominal_rates(checked.cluster))
        found += [finding for finding in measured if finding.check not in checked.skipped]
    if left_out := [node for node in checked.cluster.expected if node not in nodes]:
        text = "not measured, because a quick check failed"
        found.append(Finding(Severity.INFO, "benchmark", text, tuple(left_out), remedy="correct that, and check again"))
    findings = most_serious_first([*checked.findings, *found])
    return replace(checked, findings=findings, seconds=checked.seconds + seconds)


def bandwidth_rows(checked: Checked, results: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The table of bandwidths between nodes by size; empty if no pair of nodes was measured."""
    for row in rows_by_size(results, nominal_rates(checked.cluster)):
        figures = (three_digits(value) for value in (row.slowest, row.median, row.fastest))
        share = "-" if row.share is None else f"{100 * row.share:.0f} %"
        yield size_text(row.size_bytes), str(row.pairs), *figures, share
