"""The quick checks by name, and one pass over all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.portable.checks import (
    answers,
    cards,
    container,
    disks,
    machine,
    names,
    network,
    requirements,
    software,
)
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    Check = Callable[[Cluster], Iterator[Finding]]

CHECKS: Mapping[str, Check] = {
    "answer": answers.answer,
    "incomplete": answers.incomplete,
    "container": container.container,
    "cards": cards.count,
    "uuids": cards.uuids,
    "ecc": cards.errors,
    "xid": cards.xid,
    "throttling": cards.throttling,
    "strangers": cards.strangers,
    "card-memory": cards.memory,
    "pcie": cards.pcie,
    "nvlink": cards.nvlink,
    "nvlink-errors": cards.nvlink_errors,
    "tools": answers.slow_tools,
    "rdma": network.rdma,
    "firmware": network.firmware,
    "ports": network.ports,
    "gids": network.gids,
    "link-errors": network.link_errors,
    "variables": network.variables,
    "names": names.names,
    "port": answers.port,
    "shared": disks.shared,
    "disk": disks.disk,
    "shm": machine.shared_memory,
    "nofile": machine.open_files,
    "fsize": machine.file_size,
    "nproc": machine.user_processes,
    "memlock": machine.locked_memory,
    "swap": machine.swap,
    "governor": machine.governor,
    "clock": machine.clock,
    "versions": software.versions,
    "python": software.python,
    "nccl": software.nccl,
    "packages": software.packages,
    "trainer": software.trainer,
    "code": software.code,
    "required": requirements.required,
    "env-paths": requirements.env_paths,
}
"""Every quick check by the name that its findings and --skip use; the order is that of the table."""

_OF_PYTHON = ("python", "packages", "versions", "nccl", "trainer")
_BY_SEVERITY = {severity: rank for rank, severity in enumerate(Severity)}


def check(cluster: Cluster, skipped: Collection[str] = (), *, python_may_differ: bool = False) -> list[Finding]:
    """
    Run all checks but the skipped ones; equal findings of several nodes become one, the most serious come first.
    `python_may_differ`: the ranks may use another Python than the one that answered, so its failures are warnings.
    """
    found = [finding for name, run in CHECKS.items() if name not in skipped for finding in run(cluster)]
    order = {node: index for index, node in enumerate(cluster.expected)}
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in found:
        groups.setdefault((finding.check, finding.severity, finding.text, finding.remedy), []).append(finding)
    folded = [
        replace(
            group[0],
            nodes=tuple(
                sorted({node for finding in group for node in finding.nodes}, key=lambda node: order.get(node, 0))
            ),
            evidence="; ".join(dict.fromkeys(finding.evidence for finding in group if finding.evidence)),
        )
        for group in groups.values()
    ]
    if python_may_differ:
        folded = [
            replace(finding, severity=Severity.WARN)
            if finding.check in _OF_PYTHON and finding.severity is Severity.FAIL
            else finding
            for finding in folded
        ]
    return most_serious_first(folded)


def most_serious_first(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings by severity; equal ones keep their order."""
    return sorted(findings, key=lambda finding: _BY_SEVERITY[finding.severity])
