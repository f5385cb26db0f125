"""The network variables that a launch sets: settings that the facts contradict, and networks that cannot be joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.checks.cluster import Cluster
from orchestrator.environment.discovery import Discovery, discover
from orchestrator.findings import Finding

BY_OTHER_CHECKS = {"rdma-ports"}  # of `ports`


def variables(cluster: Cluster) -> Iterator[Finding]:
    """Discovery must not contradict the inventory; a node alone has no network to choose."""
    if len(cluster.expected) == 1:
        return
    for finding in discovery(cluster).findings:
        if finding.check not in BY_OTHER_CHECKS:
            yield replace(finding, check="variables")


def discovery(cluster: Cluster) -> Discovery:
    """The variables that a launch would set on the nodes."""
    return discover(cluster.facts, cluster.expected)
