"""Findings from the results of the communication benchmark."""

from __future__ import annotations

from typing import Any

from orchestrator.node.facts import Interface
from orchestrator.portable.checks.bandwidth import Pair
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.checks.full import SizeRow, check_results, node_pairs, nominal_rates, rows_by_size
from orchestrator.portable.environment.request import NodeRequest
from orchestrator.portable.findings import Severity
from tests.portable.checks.facts import cpu_node, gpu_node

INTERFACE: Interface = {
    "name": "eth0",
    "kind": "ethernet",
    "up": True,
    "mtu": 1500,
    "speed": None,
    "addresses": [],
    "pci": None,
    "numa": None,
    "master": None,
    "hca": None,
}


def _result(groups: str, ranks: list[int], busbw: float | None, *, size: int = 1 << 20) -> dict[str, Any]:
    base = {"groups": groups, "op": "send-recv", "dtype": "fp32", "ranks": ranks, "bytes": size, "error": ""}
    if busbw is None:
        return {**base, "error": f"rank {ranks[1]}: no answer"}
    return {**base, "time_s": 2.0, "fastest_s": 1.0, "slowest_s": 3.0, "algbw": busbw, "busbw": busbw / 2}


def _results(*results: dict[str, Any], device: str = "cuda", **changed: dict[str, Any]) -> dict[str, Any]:
    """Two nodes of two ranks; `changed` has keys of rank3, …."""
    ranks = []
    for number in range(4):
        tested = {"name": "H800", "gemm_tflops": 50.0, "memory_gb_s": 1000.0}
        base = {"rank": number, "node": f"n{number // 2}", "local_rank": number % 2, "error": "", **tested}
        ranks.append({**base, **changed.get(f"rank{number}", {})})
    return {"device": device, "ranks": ranks, "results": list(results)}


def test_bandwidth_of_two_nodes_is_the_sum_over_their_ranks_at_the_largest_size() -> None:
    small = _result("node-pairs", [0, 2], 1.0, size=1024)
    assert node_pairs(_results(small, _result("node-pairs", [0, 2], 8.0), _result("node-pairs", [1, 3], 6.0))) == [
        Pair("n0", "n1", 14.0)
    ]
    failed = _results(_result("node-pairs", [0, 2], 8.0), _result("node-pairs", [1, 3], None))
    assert node_pairs(failed) == [Pair("n0", "n1", None, "rank 3: no answer")]


def test_fastest_pass_counts_and_a_failure_in_any() -> None:
    passes = [_result("node-pairs", [0, 2], bandwidth) for bandwidth in (3.0, 8.0, 4.0)]
    assert node_pairs(_results(*passes)) == [Pair("n0", "n1", 8.0)]
    failed = [_result("node-pairs", [0, 2], bandwidth) for bandwidth in (3.0, None, 4.0)]
    assert node_pairs(_results(*failed)) == [Pair("n0", "n1", None, "rank 2: no answer")]


def test_pairs_of_ranks_measured_one_after_the_other_are_not_added() -> None:
    pairs = [_result("pairs", ranks, bandwidth) for ranks, bandwidth in (([0, 1], 90.0), ([0, 2], 8.0), ([0, 3], 6.0))]
    assert node_pairs(_results(*pairs)) == [Pair("n0", "n1", 8.0)]


def test_nominal_rate_is_that_of_the_ports_of_the_ranks_or_of_the_interface() -> None:
    by_port, by_card = gpu_node("n0", cards=4), cpu_node("n1")
    by_card["interfaces"] = [
        {**INTERFACE, "name": "eth0", "speed": 25.0, "addresses": [{"address": "10.0.0.2", "prefix": 24}]},
        {**INTERFACE, "name": "eth1", "speed": 100.0},
    ]
    expected = {"n0": NodeRequest("10.0.0.1", ranks=2), "n1": NodeRequest("10.0.0.2", accelerator="cpu")}
    rates = nominal_rates(Cluster(expected, {"n0": by_port, "n1": by_card}))
    port_rate = by_port["hcas"][0]["ports"][0]["rate"]
    assert port_rate is not None
    assert rates == {"n0": 2 * port_rate / 8, "n1": 25 / 8}
    ethernet = {"n0": NodeRequest("10.0.0.1", ranks=2, network="ethernet")}
    assert nominal_rates(Cluster(ethernet, {"n0": by_port})) == {}


def test_rows_by_size_have_the_share_of_the_networks_rate() -> None:
    results = _results(
        *(_result("node-pairs", [0, 2], busbw, size=size) for size, busbw in ((1024, 1.0), (4096, 8.0), (4096, 6.0))),
        _result("node", [0, 1], 100.0, size=4096),
    )
    assert list(rows_by_size(results, {"n0": 16.0, "n1": 32.0})) == [
        SizeRow(1024, 1, 1.0, 1.0, 1.0, 1 / 16),
        SizeRow(4096, 1, 8.0, 8.0, 8.0, 0.5),
    ]
    assert [row.share for row in rows_by_size(results, {"n0": 16.0})] == [None, None]


def test_device_that_failed_or_did_not_start_is_named() -> None:
    absent = {"node": "", "local_rank": None, "error": "it did not start in time"}
    failed, missing = check_results(
        _results(rank1={"error": "a product is not finite", "gemm_tflops": None}, rank3=absent)
    )
    assert (failed.severity, failed.nodes) == (Severity.FAIL, ("n0",))
    assert failed.text == "device 1 failed: a product is not finite"
    assert (missing.nodes, missing.text) == ((), "rank 3 failed: it did not start in time")


def test_slow_device_is_a_warning_except_on_cpus() -> None:
    slow = {"gemm_tflops": 20.0}
    [finding] = check_results(_results(rank2=slow))
    assert (finding.severity, finding.nodes) == (Severity.WARN, ("n1",))
    assert finding.text == "device 0 is slow: 20 TFLOPS in a matrix product; 50 is usual here"
    assert check_results(_results(rank2=slow, device="cpu")) == []


def test_small_differences_count_on_cards_only() -> None:
    nodes = [_result("node", [0, 1], 10.0), _result("node", [2, 3], 4.0)]
    assert [finding.nodes for finding in check_results(_results(*nodes))] == [("n1",)]
    assert check_results(_results(*nodes, device="cpu")) == []
    pair = _result("node-pairs", [0, 2], 8.0)
    assert len(check_results(_results(pair), {"n0": 20.0, "n1": 20.0})) == 1
    assert check_results(_results(pair, device="cpu"), {"n0": 20.0, "n1": 20.0}) == []


def test_failed_all_reduce_inside_a_node_has_its_cause() -> None:
    [finding] = check_results(_results(_result("node", [0, 1], 100.0), _result("node", [2, 3], None)))
    assert (finding.severity, finding.nodes, finding.evidence) == (Severity.FAIL, ("n1",), "rank 3: no answer")
