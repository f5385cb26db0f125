"""Names of the nodes, as each node resolves them: MASTER_ADDR and a node's own name must lead to the node."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from orchestrator.node.facts import NodeFacts
from orchestrator.portable.checks.cluster import Cluster, host_names
from orchestrator.portable.checks.majority import difference, other_nodes
from orchestrator.portable.findings import Finding, Severity

if TYPE_CHECKING:
    Addresses = tuple[str, ...]

REMEDY = "correct /etc/hosts or the name server there: `127.0.1.1 NAME` lines are the usual cause"


def names(cluster: Cluster) -> Iterator[Finding]:
    """
    A name must lead to its node: a node that resolves it to other addresses fails if another one resolves it to the node's own.

    A node may resolve its own name to all its addresses (systemd-resolved, nss-myhostname) where the others have one from the name server.
    """
    if len(cluster.expected) <= 1:  # one node has no peers
        return
    for node, expected in cluster.expected.items():
        for host in host_names(node, expected):
            resolved = {viewer: _resolved(facts, host) for viewer, facts in cluster.facts.items()}
            known: dict[str, Addresses] = {
                viewer: tuple(sorted(found)) for viewer, found in resolved.items() if found is not None
            }
            yield from _loopback(host, node, known)
            yield from _elsewhere(host, node, known, _addresses(cluster.facts.get(node)))


def _resolved(facts: NodeFacts, host: str) -> list[str] | None:
    """The addresses of a host name on a node, none if the name server did not answer; None if it was not looked up."""
    is_silent = f"names.resolved.{host}" in facts["missing"]
    return [] if is_silent else facts["names"]["resolved"].get(host)


def _addresses(facts: NodeFacts | None) -> frozenset[str]:
    """The addresses of a node's interfaces, without those of the loopback."""
    interfaces = facts["interfaces"] if facts else []
    found = {entry["address"] for interface in interfaces for entry in interface["addresses"]}
    return frozenset(address for address in found if not _is_loopback(address))


def _loopback(name: str, owner: str, resolved: Mapping[str, Addresses]) -> Iterator[Finding]:
    """Nodes where the name has no address, or a loopback address only."""
    found = {node: addresses for node, addresses in resolved.items() if addresses}
    if not found:
        return  # no node resolves it: the inventory's addresses are used
    absent = tuple(node for node in resolved if node not in found)
    if absent:
        text = f"{name} does not resolve; it does on {other_nodes(len(found))}"
        yield Finding(Severity.WARN, "names", text, absent, remedy="add the name to /etc/hosts or to the name server")
    for node in (node for node, addresses in found.items() if all(map(_is_loopback, addresses))):
        if node == owner:  # as Debian installs it; the launch names the interface for NCCL and gloo
            text = f"its name resolves to the loopback address {found[node][0]}: a program that announces the name is not reached"
            yield Finding(Severity.WARN, "names", text, (node,), remedy=REMEDY)
        else:
            text = f"{name} resolves to the loopback address {found[node][0]}: it would be taken for this node"
            yield Finding(Severity.FAIL, "names", text, (node,), remedy=REMEDY)


def _elsewhere(
    name: str, owner: str, resolved: Mapping[str, Addresses], owners_addresses: frozenset[str]
) -> Iterator[Finding]:
    """Nodes where the name has addresses of another machine; `owners_addresses` are empty if not known."""
    found = {node: addresses for node, addresses in resolved.items() if not all(map(_is_loopback, addresses))}
    right = {
        node
        for node, addresses in found.items()
        if owners_addresses & {address.partition("%")[0] for address in addresses}
    }
    differs = difference({node: ", ".join(addresses) for node, addresses in found.items()})
    if right - {owner}:
        for node in (node for node in found if node not in right):
            answer = f"{name} resolves to {', '.join(found[node])}, which {owner} does not have"
            text = f"{answer}; to an address of {owner} on {other_nodes(len(right))}"
            yield Finding(Severity.FAIL, "names", text, (node,), remedy=REMEDY)
    elif differs and not frozenset.intersection(*map(frozenset, found.values())):  # as behind address translation
        text = f"{name} resolves differently: {differs.text()}"
        yield Finding(Severity.WARN, "names", text, differs.nodes, remedy=REMEDY)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"
