"""Nodes that did not answer, to the connection or to the others, and facts and tools that did not."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.findings import Finding, Severity

REFUSED = "connection refused"
SLOW_TOOL_S = 5.0
MAY_BE_SLOW = ("software", "names", "disks.home")
"""Facts that a healthy node may give late: a conda environment or a home folder on a busy file server, names of a slow DNS server."""


def answer(cluster: Cluster) -> Iterator[Finding]:
    """Every node must answer."""
    for node in cluster.expected:
        if node not in cluster.facts:
            reason = cluster.failures.get(node, "no answer")
            remedy = cluster.hints.get(node) or "log in with `orch ssh NODE`, or leave the node out with --nodes"
            yield Finding(Severity.FAIL, "answer", reason, (node,), remedy=remedy)


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


def incomplete(cluster: Cluster) -> Iterator[Finding]:
    """A part of the answer that does not come: a file system or a driver hangs, or the cards cannot be read."""
    for node, facts in cluster.facts.items():
        for fact, reason in facts["missing"].items():
            if fact.startswith("names.resolved."):
                continue  # the check of names compares the nodes
            if reason.startswith("no answer") and not fact.startswith("code"):  # many files are no fault
                remedy = "look for a server or a driver that hangs there (dmesg, df)"
                severity = Severity.WARN if fact.startswith(MAY_BE_SLOW) else Severity.FAIL
                yield Finding(severity, "incomplete", f"{fact} cannot be read: {reason}", (node,), remedy=remedy)
            elif fact.startswith("cards"):
                remedy = "run the tool there, or on the host of a container: without it, no more is known of the cards"
                yield Finding(Severity.WARN, "incomplete", f"{fact} cannot be read: {reason}", (node,), remedy=remedy)


def slow_tools(cluster: Cluster) -> Iterator[Finding]:
    """A vendor tool that does not end is the first sign of a driver that hangs; without persistence mode, each call is slow."""
    for node, facts in cluster.facts.items():
        for tool in facts["tools"]:
            if tool["seconds"] > SLOW_TOOL_S:
                severity = Severity.FAIL if tool["error"] else Severity.WARN
                text = f"{tool['name']} took more than {SLOW_TOOL_S:g} s"
                evidence = f"{tool['seconds']:.1f} s; {tool['error'] or 'it ended'}"
                remedy = "look for driver errors in the kernel log (dmesg), and restart the node if the driver hangs"
                yield Finding(severity, "tools", text, (node,), evidence, remedy)
