"""The network variables that a launch sets: settings that the facts contradict, and networks that cannot be joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.checks.cluster import Cluster
from orchestrator.environment.discovery import NodeRequest, discover
from orchestrator.findings import Finding

BY_OTHER_CHECKS = {"rdma-ports"}  # of `ports`


def variables(cluster: Cluster) -> Iterator[Finding]:
    """Discovery must not contradict the inventory; a node alone has no network to choose."""
    if len(cluster.expected) == 1:
        return
    requests = {
        node: NodeRequest(expected.address, expected.network, expected.devices, expected.env, expected.private)
        for node, expected in cluster.expected.items()
    }
    for finding in discover(cluster.facts, requests).findings:
        if finding.check not in BY_OTHER_CHECKS:
            yield replace(finding, check="variables")
