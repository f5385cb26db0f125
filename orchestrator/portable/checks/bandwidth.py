"""
From measured bandwidths to the slow node or link, by comparison with the other nodes.

A node is named if more than half of the pairs with it are bad; it is then left out, and the search repeats. A bad pair that is left
is a link between two nodes that are sound with others.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.node.number_text import three_digits
from orchestrator.portable.findings import Finding, Severity

# A pair is bad below a share of the usual bandwidth: the median over the nodes of their fastest pair, so that one slow node among
# three does not decide it. The worst pairs are explained first: their cause must not hide behind others that are a little slow.
Limits = Sequence[tuple[float, Severity]]
LIMITS: Limits = ((0.01, Severity.FAIL), (0.1, Severity.FAIL), (0.5, Severity.FAIL), (0.8, Severity.WARN))
CPU_LIMITS = LIMITS[:2]  # ranks on CPUs: other processes there easily take half of the bandwidth
LEAST_OF_NOMINAL = 0.5
MOST_SHOWN = 6
LEAST_PAIRS = 2  # of a node: one bad pair does not show which of the two is the cause
LINK_REMEDY = "swap the cable or port between the two, or compare their routes (ip route get, ibtracert)"
NODE_REMEDY = "leave the node out (--nodes, tags: [spare]), then check its network: link speed, cable, switch port, error counters"


@dataclass(frozen=True)
class Pair:
    """The bandwidth in GB/s between two nodes in each direction; None if they could not communicate, with the error."""

    first: str
    second: str
    bandwidth: float | None
    error: str = ""

    @property
    def nodes(self) -> tuple[str, str]:
        return self.first, self.second

    def text(self, nominal: Mapping[str, float]) -> str:
        """Its bandwidth for a person, as in `n0-n1 1.2 GB/s, 10 % of the network's rate`."""
        if self.bandwidth is None:
            return f"{self.first}-{self.second} failed: {self.error}"
        text = f"{self.first}-{self.second} {three_digits(self.bandwidth)} GB/s"
        share = self.share(nominal)
        return text if share is None else f"{text}, {100 * share:.0f} % of the network's rate"

    def share(self, nominal: Mapping[str, float]) -> float | None:
        """The bandwidth as a share of the rate of the slower of both networks; None if one is not known."""
        rates = [nominal[node] for node in self.nodes if nominal.get(node)]
        return None if self.bandwidth is None or len(rates) < len(self.nodes) else self.bandwidth / min(rates)


@dataclass(frozen=True)
class _Report:
    """Words findings, with the usual bandwidth in GB/s; `has_others`: more than one pair was measured."""

    usual: float
    nominal: Mapping[str, float]
    has_others: bool

    def node(self, severity: Severity, node: str, pairs: Sequence[Pair], limit: float) -> Finding:
        """The finding that a node is the cause; `pairs` are those with it, bad below `limit`."""
        count = sum(_is_bad(pair, limit) for pair in pairs)
        if any(pair.bandwidth is not None for pair in pairs):
            verdict = "slow or dead" if any(pair.bandwidth is None for pair in pairs) else "slow"
            text = f"{node} is {verdict} with {count} of {len(pairs)} other nodes; {self._usual_text()}"
        else:
            text = f"{node} cannot communicate with any other node"
        return Finding(severity, "bandwidth", text, (node,), self.evidence(pairs), NODE_REMEDY)

    def link(self, severity: Severity, pair: Pair) -> Finding:
        """The finding that two nodes are bad with each other only."""
        between = f"between {pair.first} and {pair.second}"
        if pair.bandwidth is None:
            text = f"no communication {between}"
        else:
            text = f"the link {between} is slow: {three_digits(pair.bandwidth)} GB/s; {self._usual_text()}"
        comparison = "both are sound with other nodes"
        if not self.has_others:
            comparison = "with two nodes, neither can be named as the cause"
        return Finding(severity, "bandwidth", f"{text}; {comparison}", pair.nodes, self.evidence([pair]), LINK_REMEDY)

    def evidence(self, pairs: Sequence[Pair]) -> str:
        shown = [pair.text(self.nominal) for pair in pairs[:MOST_SHOWN]]
        more = [f"and {len(pairs) - MOST_SHOWN} more"] if len(pairs) > MOST_SHOWN else []
        return "; ".join([*shown, *more])

    def _usual_text(self) -> str:
        return f"{three_digits(self.usual)} GB/s is usual here"


def compare_pairs(pairs: Sequence[Pair], nominal: Mapping[str, float], limits: Limits = LIMITS) -> Iterator[Finding]:
    """
    Find the nodes and links that failed or are slow.

    Args:
        pairs: every two nodes once; pairs that were not measured may be missing.
        nominal: node -> the rate of that node's network in GB/s, if it is known.
        limits: shares of the usual bandwidth, ascending, and the severity below each.
    """
    report = _Report(_usual(pairs), nominal, has_others=len(pairs) > 1)
    left = list(pairs)
    for share, severity in limits:
        limit = share * report.usual
        while node := _worst_node(left, limit):
            yield report.node(severity, node, [pair for pair in left if node in pair.nodes], limit)
            left = [pair for pair in left if node not in pair.nodes]
        for pair in [pair for pair in left if _is_bad(pair, limit)]:
            left.remove(pair)
            yield report.link(severity, pair)
    shares = [(pair, pair.share(nominal)) for pair in left]
    if slow := [pair for pair, share in shares if share is not None and share < LEAST_OF_NOMINAL]:
        nodes = tuple(dict.fromkeys(node for pair in slow for node in pair.nodes))
        text = f"pairs of nodes reach less than {100 * LEAST_OF_NOMINAL:.0f} % of the network's rate"
        remedy = "look at the network that the ranks use (NCCL_DEBUG=INFO: NET/IB or NET/Socket), and at larger sizes"
        yield Finding(Severity.WARN, "bandwidth", text, nodes, report.evidence(slow), remedy)


def compare_nodes(
    bandwidths: Mapping[str, float | None], errors: Mapping[str, str], limits: Limits = LIMITS
) -> Iterator[Finding]:
    """Find the nodes in which an all-reduce failed (None) or is slow compared with the other nodes; GB/s."""
    remedy = "compare `nvidia-smi topo -m`, clocks and NVLink errors of this node with another's, and leave it out"
    measured = [bandwidth for bandwidth in bandwidths.values() if bandwidth is not None]
    usual = statistics.median_high(measured) if measured else 0.0
    for node, bandwidth in bandwidths.items():
        if bandwidth is None:
            text = f"the all-reduce inside {node} failed"
            yield Finding(Severity.FAIL, "all-reduce", text, (node,), errors.get(node, ""), remedy)
        elif severity := next((severity for share, severity in limits if bandwidth < share * usual), None):
            text = f"the all-reduce inside {node} is slow: {three_digits(bandwidth)} GB/s; {three_digits(usual)} GB/s is usual here"
            yield Finding(severity, "all-reduce", text, (node,), remedy=remedy)


def _usual(pairs: Sequence[Pair]) -> float:
    fastest: dict[str, float] = {}
    for pair in pairs:
        for node in pair.nodes:
            if pair.bandwidth is not None:
                fastest[node] = max(pair.bandwidth, fastest.get(node, 0.0))
    return statistics.median_high(fastest.values()) if fastest else 0.0


def _is_bad(pair: Pair, limit: float) -> bool:
    return pair.bandwidth is None or pair.bandwidth < limit


def _worst_node(pairs: Sequence[Pair], limit: float) -> str | None:
    """The node with the largest share of bad pairs, if it is more than half and at least LEAST_PAIRS pairs are bad."""
    counts, bad = Counter[str](), Counter[str]()
    for pair in pairs:
        counts.update(pair.nodes)
        if _is_bad(pair, limit):
            bad.update(pair.nodes)
    shares = {node: bad[node] / count for node, count in counts.items() if bad[node] >= LEAST_PAIRS}
    worst = max(shares, key=lambda node: shares[node], default=None)
    return worst if worst is not None and shares[worst] > 0.5 else None  # noqa: PLR2004  half
