"""
The findings of a full check: from the results of the communication benchmark (trainer/comm, comm.json).

The fastest repetition of all passes is compared, not the median: another process on the node slows some repetitions, a bad link
all of them. An operation that fails in one pass has failed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.node.number_text import three_digits
from orchestrator.portable.checks.bandwidth import CPU_LIMITS, LIMITS, Pair, compare_nodes, compare_pairs
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.findings import Finding, Severity

Results = Mapping[str, Any]
"""The content of comm.json."""
MEASURED = ("device", "all-reduce", "bandwidth")
"""The names that the findings and --skip use."""
SLOW_DEVICE = 0.7
BITS = 8  # in a byte
FIGURES = {"gemm_tflops": "TFLOPS in a matrix product", "memory_gb_s": "GB/s of memory bandwidth"}
DEVICE_REMEDY = "leave the node out, drain it, and run the vendor's test (dcgmi diag -r 3)"


@dataclass(frozen=True)
class SizeRow:
    """Bandwidths in GB/s between pairs of nodes; `share` is the median of their shares of the network's rate, None if unknown."""

    size_bytes: int
    pairs: int
    slowest: float
    median: float
    fastest: float
    share: float | None


def check_results(results: Results, nominal: Mapping[str, float] | None = None) -> list[Finding]:
    """Judge what a benchmark has measured; `nominal` has the rate of each node's network in GB/s, where it is known."""
    is_cpu = results["device"] == "cpu"
    limits, rates = (CPU_LIMITS, {}) if is_cpu else (LIMITS, nominal or {})
    node_of = {rank["rank"]: rank["node"] for rank in results["ranks"]}
    inside = {node_of[result["ranks"][0]]: result for result in _largest(results, "node")}
    bandwidths = {node: None if result["error"] else _fastest(result) for node, result in inside.items()}
    inside_nodes = compare_nodes(bandwidths, {node: result["error"] for node, result in inside.items()}, limits)
    return [*_devices(results), *inside_nodes, *compare_pairs(node_pairs(results), rates, limits)]


def nominal_rates(cluster: Cluster) -> dict[str, float]:
    """The rate in GB/s of each known network: one active RDMA port for each rank, else the fastest interface with an address."""
    rates: dict[str, float] = {}
    for node, facts in cluster.facts.items():
        expected = cluster.expected[node]
        ports = [port for hca in facts["hcas"] if hca["usable"] for port in hca["ports"] if port["state"] == "ACTIVE"]
        by_rate = sorted((port["rate"] or 0.0 for port in ports), reverse=True)
        speeds = [interface["speed"] or 0.0 for interface in facts["interfaces"] if interface["addresses"]]
        uses_rdma = expected.network != "ethernet" and cluster.uses_cards(node)
        gigabits = sum(by_rate[: expected.ranks]) if uses_rdma and by_rate else max(speeds, default=0.0)
        if gigabits:
            rates[node] = gigabits / BITS
    return rates


def rows_by_size(results: Results, nominal: Mapping[str, float]) -> Iterator[SizeRow]:
    """The bandwidths of all pairs of nodes at each size; pairs that failed are left out."""
    sizes = sorted({result["bytes"] for result in results["results"] if result["groups"] == "node-pairs"} - {0})
    for size in sizes:
        chosen = [result for result in results["results"] if result["bytes"] == size]
        measured = [pair for pair in node_pairs({**results, "results": chosen}) if pair.bandwidth is not None]
        bandwidths = [pair.bandwidth for pair in measured if pair.bandwidth is not None]
        shares = [share for pair in measured if (share := pair.share(nominal)) is not None]
        if bandwidths:
            share = statistics.median(shares) if shares else None
            median = statistics.median(bandwidths)
            yield SizeRow(size, len(bandwidths), min(bandwidths), median, max(bandwidths), share)


def node_pairs(results: Results) -> list[Pair]:
    """The bandwidth between every two nodes: the sum over the pairs of ranks that were measured at the same time, at the largest size."""
    node_of = {rank["rank"]: rank["node"] for rank in results["ranks"]}
    measured: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in _largest(results, "node-pairs") or _largest(results, "pairs"):
        first, second = (node_of[rank] for rank in result["ranks"])
        if first != second:
            measured.setdefault((first, second), []).append(result)
    at_once = any(result["groups"] == "node-pairs" for result in results["results"])
    return [_pair(nodes, found, at_once=at_once) for nodes, found in measured.items()]


def _pair(nodes: tuple[str, str], results: Sequence[Mapping[str, Any]], *, at_once: bool) -> Pair:
    errors = [result["error"] for result in results if result["error"]]
    if errors:
        return Pair(*nodes, None, errors[0])
    bandwidths = [_fastest(result) for result in results]
    return Pair(*nodes, sum(bandwidths) if at_once else max(bandwidths))


def _largest(results: Results, groups: str) -> list[Mapping[str, Any]]:
    """The result of each group that failed, or was fastest at the largest size."""
    measured = [result for result in results["results"] if result["groups"] == groups]
    largest = max((result["bytes"] for result in measured), default=0)
    best: dict[tuple[int, ...], Mapping[str, Any]] = {}
    for result in measured:
        if result["error"]:
            best[tuple(result["ranks"])] = result
        elif result["bytes"] == largest:
            known = best.get(tuple(result["ranks"]), result)
            best[tuple(result["ranks"])] = known if known["error"] or _fastest(known) > _fastest(result) else result
    return list(best.values())


def _fastest(result: Mapping[str, Any]) -> float:
    return float(result["busbw"] * result["time_s"] / result["fastest_s"])


def _devices(results: Results) -> Iterator[Finding]:
    """Devices that failed their test, or are slow compared with the others of the same name."""
    for rank in results["ranks"]:
        if rank["error"]:
            device = f"rank {rank['rank']}" if rank["local_rank"] is None else f"device {rank['local_rank']}"
            nodes = (rank["node"],) if rank["node"] else ()
            yield Finding(Severity.FAIL, "device", f"{device} failed: {rank['error']}", nodes, remedy=DEVICE_REMEDY)
    if results["device"] == "cpu":  # shared by the ranks of the node
        return
    for figure, words in FIGURES.items():
        by_name: dict[str, list[float]] = {}
        tested = [rank for rank in results["ranks"] if rank.get(figure)]
        for rank in tested:
            by_name.setdefault(rank["name"], []).append(rank[figure])
        for rank in tested:
            usual = statistics.median_high(by_name[rank["name"]])
            if rank[figure] < SLOW_DEVICE * usual:
                text = f"device {rank['local_rank']} is slow: {three_digits(rank[figure])} {words}; {three_digits(usual)} is usual here"
                remedy = "look at clocks, temperature and power limit (nvidia-smi -q -d CLOCK,PERFORMANCE)"
                yield Finding(Severity.WARN, "device", text, (rank["node"],), remedy=remedy)
