"""RDMA devices: ports up and at the rate of the majority, without errors, with the GIDs that RoCE needs; the variables for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.node.facts import Hca, HcaPort, NodeFacts
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.checks.majority import difference, other_nodes
from orchestrator.portable.environment.discovery import discover
from orchestrator.portable.findings import Finding, Severity

ETHERNET = "Ethernet"
ROCE_V2 = "RoCE v2"
BY_OTHER_CHECKS = {"rdma-ports"}  # of `ports`
# Counters of a port that a good link does not increase (/sys/class/infiniband/*/ports/*/counters).
ERROR_COUNTERS = "link_downed link_error_recovery symbol_error port_rcv_errors local_link_integrity_errors".split()


def rdma(cluster: Cluster) -> Iterator[Finding]:
    """RDMA adapters must be usable, and as many on each node."""
    for node, facts in cluster.facts.items():
        hidden = [hca["name"] for hca in facts["hcas"] if not hca["usable"]]
        if hidden and cluster.uses_cards(node):
            text = f"{', '.join(hidden)}: the device file is missing; NCCL would use TCP instead"
            remedy = cluster.recreate(node, "--device=/dev/infiniband", "--ulimit=memlock=-1")
            remedy = remedy or "give the container /dev/infiniband (--device=/dev/infiniband, --ulimit memlock=-1)"
            is_pinned = cluster.expected[node].network in ("infiniband", "roce")
            yield Finding(Severity.FAIL if is_pinned else Severity.WARN, "rdma", text, (node,), remedy=remedy)
    if differs := difference({node: len(facts["hcas"]) for node, facts in cluster.facts.items()}):
        text = f"the number of RDMA adapters differs: {differs.text()}"
        yield Finding(Severity.WARN, "rdma", text, differs.nodes, remedy="compare `ibstat -l` on these nodes")


def firmware(cluster: Cluster) -> Iterator[Finding]:
    """RDMA devices of one board type should have the same firmware."""
    boards: dict[str, dict[str, str]] = {}
    for node, facts in cluster.facts.items():
        for hca in facts["hcas"]:
            if hca["board"] and hca["firmware"]:
                boards.setdefault(hca["board"], {})[f"{node} {hca['name']}"] = hca["firmware"]
    for board, versions in boards.items():
        if differs := difference(versions):
            nodes = tuple(dict.fromkeys(name.split(" ")[0] for name in differs.nodes))
            text = f"the firmware of {board} devices differs: {differs.text()}"
            remedy = "update the firmware of the minority (mlxfwmanager)"
            yield Finding(Severity.WARN, "firmware", text, nodes, remedy=remedy)


def ports(cluster: Cluster) -> Iterator[Finding]:
    """
    A port that is active on most nodes must be active on all with that adapter, at the same rate and with the same link layer.

    Only on nodes whose ranks use RDMA. Without a majority, the difference may be intended, such as a port that one node has for storage.
    """
    nodes = [
        node for node in cluster.facts if cluster.uses_cards(node) and cluster.expected[node].network != "ethernet"
    ]
    states: dict[tuple[str, str | None], dict[str, str]] = {}  # by name and board: nodes may have other adapters
    rates: dict[tuple[str, str | None], dict[str, str]] = {}
    for node in nodes:
        for hca, port in _ports(cluster.facts[node]):
            adapter = _name(hca, port), hca["board"]
            states.setdefault(adapter, {})[node] = f"{port['state']} ({port['physical_state']})"
            if port["state"] == "ACTIVE" and port["rate"] is not None:
                rates.setdefault(adapter, {})[node] = f"{port['rate']:g} Gb/s {port['link_layer']}"
    remedy = (
        "check cable, switch port and subnet manager (ibstat: Polling means no peer, Initializing no subnet manager)"
    )
    for (name, _), by_node in states.items():
        down = tuple(node for node, state in by_node.items() if not state.startswith("ACTIVE"))
        if down and len(down) < len(by_node):
            text = f"{name} is {by_node[down[0]]}; ACTIVE on {other_nodes(len(by_node) - len(down))}"
            severity = Severity.FAIL if 2 * len(down) < len(by_node) else Severity.WARN
            yield Finding(severity, "ports", text, down, remedy=remedy)
    for node in nodes:
        found = _ports(cluster.facts[node])
        if found and not any(port["state"] == "ACTIVE" for _, port in found):
            severity = Severity.FAIL if cluster.expected[node].network in ("infiniband", "roce") else Severity.WARN
            text = "no RDMA port is active; NCCL would use TCP instead"
            yield Finding(severity, "ports", text, (node,), remedy=remedy)
    for (name, _), rate_by_node in rates.items():
        if differs := difference(rate_by_node):
            text = f"the rate of {name} differs: {differs.text()}"
            slow = "a damaged cable lowers the rate: compare ibstat, and replace the cable"
            severity = Severity.WARN if differs.majority is None else Severity.FAIL
            yield Finding(severity, "ports", text, differs.nodes, remedy=slow)


def gids(cluster: Cluster) -> Iterator[Finding]:
    """An active RoCE port needs a RoCE v2 GID."""
    for node, facts in cluster.facts.items():
        if cluster.expected[node].network in ("ethernet", "infiniband"):
            continue
        for hca, port in _ports(facts):
            if port["link_layer"] != ETHERNET or port["state"] != "ACTIVE" or hca["node_type"] == "RNIC":  # iWARP
                continue
            if not any(gid["type"] == ROCE_V2 for gid in port["gids"]):
                text = f"{_name(hca, port)} has no RoCE v2 GID"
                remedy = "give its interface an IP address: the GID follows from it (show_gids)"
                severity = Severity.FAIL if cluster.expected[node].network == "roce" else Severity.WARN
                yield Finding(severity, "gids", text, (node,), remedy=remedy)


def link_errors(cluster: Cluster) -> Iterator[Finding]:
    """Ports whose error counters stand out; the counters count since the driver was loaded, so they are no proof."""
    for node, facts in cluster.facts.items():
        for hca, port in _ports(facts):
            counted = {name: port["counters"].get(name, 0) for name in ERROR_COUNTERS}
            if any(counted.values()):
                evidence = ", ".join(f"{name}={value}" for name, value in counted.items() if value)
                remedy = "clear the counters (perfquery -R) and look again in an hour; clean or replace the cable if they rise"
                text = f"{_name(hca, port)} has counted link errors"
                yield Finding(Severity.WARN, "link-errors", text, (node,), evidence=evidence, remedy=remedy)


def variables(cluster: Cluster) -> Iterator[Finding]:
    """Discovery must not contradict the inventory; a node alone has no network to choose."""
    if len(cluster.expected) == 1:
        return
    for finding in discover(cluster.facts, cluster.expected).findings:
        if finding.check not in BY_OTHER_CHECKS:
            yield replace(finding, check="variables")


def _ports(facts: NodeFacts) -> list[tuple[Hca, HcaPort]]:
    return [(hca, port) for hca in facts["hcas"] for port in hca["ports"]]


def _name(hca: Hca, port: HcaPort) -> str:
    return hca["name"] if len(hca["ports"]) == 1 else f"{hca['name']}:{port['port']}"
