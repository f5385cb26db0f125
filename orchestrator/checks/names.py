"""Names of the nodes, as each node resolves them: MASTER_ADDR and a node's own name must lead to the node."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from orchestrator.checks.cluster import Cluster, host_names
from orchestrator.checks.majority import difference
from orchestrator.findings import Finding, Severity
from orchestrator.node.facts import NodeFacts

REMEDY = "correct /etc/hosts or the name server there: `127.0.1.1 NAME` lines are the usual cause"


def names(cluster: Cluster) -> Iterator[Finding]:
    """All nodes must resolve a name to the same addresses, and to no loopback address unless they are one machine."""
    if len(cluster.expected) < 2:  # noqa: PLR2004  one node has no peers
        return
    for node, expected in cluster.expected.items():
        for host in host_names(node, expected):
            resolved = {viewer: _resolved(facts, host) for viewer, facts in cluster.facts.items()}
            known = {viewer: tuple(sorted(found)) for viewer, found in resolved.items() if found is not None}
            yield from _of_name(host, node, known)


def _resolved(facts: NodeFacts, host: str) -> list[str] | None:
    """The addresses of a host name on a node, none if the name server did not answer; None if it was not looked up."""
    is_silent = f"names.resolved.{host}" in facts["missing"]
    return [] if is_silent else facts["names"]["resolved"].get(host)


def _of_name(name: str, owner: str, resolved: dict[str, tuple[str, ...]]) -> Iterator[Finding]:
    found = {node: addresses for node, addresses in resolved.items() if addresses}
    if not found:
        return  # no node resolves it: the inventory's addresses are used
    absent = tuple(node for node in resolved if node not in found)
    if absent:
        text = f"{name} does not resolve; it does on {_count(len(found))}"
        yield Finding(Severity.WARN, "names", text, absent, remedy="add the name to /etc/hosts or to the name server")
    loopback = tuple(node for node, addresses in found.items() if all(map(_is_loopback, addresses)))
    for node in loopback:
        if node == owner:  # as Debian installs it; the launch names the interface for NCCL and gloo
            text = f"its name resolves to the loopback address {found[node][0]}: a program that announces the name is not reached"
            yield Finding(Severity.WARN, "names", text, (node,), remedy=REMEDY)
        else:
            text = f"{name} resolves to the loopback address {found[node][0]}: it would be taken for this node"
            yield Finding(Severity.FAIL, "names", text, (node,), remedy=REMEDY)
    routable = {node: ", ".join(addresses) for node, addresses in found.items() if node not in loopback}
    if differs := difference(routable):
        yield Finding(
            Severity.FAIL, "names", f"{name} resolves differently: {differs.text()}", differs.nodes, remedy=REMEDY
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def _count(nodes: int) -> str:
    return f"{nodes} other node{'s' if nodes > 1 else ''}"
