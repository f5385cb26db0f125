"""Tests that need an action on the nodes: the rendezvous port, and folders that several nodes share."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.checks.cluster import Cluster
from orchestrator.findings import Finding, Severity

REFUSED = "connection refused"


def port(cluster: Cluster) -> Iterator[Finding]:
    """The head has a free port for the rendezvous, and every other node can connect to it."""
    test = cluster.rendezvous
    if test is None:
        return
    if test.error:
        remedy = test.remedy or "see net.ipv4.ip_local_port_range and ss -tlnp there; another head: --nodes without it"
        yield Finding(Severity.FAIL, "port", f"no port for the rendezvous: {test.error}", (test.head,), remedy=remedy)
    for node, reason in test.unreachable.items():
        text = f"{test.head} at {test.address} cannot be reached at a rendezvous port: {reason}"
        if reason == REFUSED:
            text += f", although {test.head} listens: a firewall rejects it, or the address is another machine's there"
        remedy = "open all TCP ports between the nodes in the firewall; NCCL and gloo choose more of them"
        yield Finding(Severity.FAIL, "port", text, (node,), evidence=f"{test.address} port {test.port}", remedy=remedy)


def shared(cluster: Cluster) -> Iterator[Finding]:
    """A token that one node wrote must be there on all nodes that share the folder."""
    for test in cluster.shared:
        if test.error:
            text = f"{test.path} cannot be written: {test.error}"
            yield Finding(
                Severity.FAIL, "shared", text, (test.writer,), remedy="mount it read-write, or choose another workdir:"
            )
        for node, reason in test.readers.items():
            if reason:
                text = f"{test.path}: the file that {test.writer} wrote there is not on this node: {reason}"
                remedy = "mount the same file system there (findmnt -T shows what is mounted)"
                yield Finding(Severity.FAIL, "shared", text, (node,), remedy=remedy)
