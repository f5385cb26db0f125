"""The full level of a check: which nodes are measured, and how the findings of both levels become one result."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.checks.quick import CHECKS
from orchestrator.portable.environment.request import NodeRequest
from orchestrator.portable.findings import Finding, Severity
from orchestrator.usecases.checks.check import Checked
from orchestrator.usecases.trials.full_check import (
    bandwidth_rows,
    benchmark_arguments,
    require_measurements,
    with_measurements,
)
from tests.portable.checks.facts import cpu_node, gpu_node

FAILED = Finding(Severity.FAIL, "disk", "workdir is full", ("n1",))
WARNED = Finding(Severity.WARN, "shm", "/dev/shm is small", ("n0",))


def _checked(*findings: Finding, skipped: tuple[str, ...] = (), cards: bool = False) -> Checked:
    """n0 and n1 answered, n2 did not."""
    nodes = ["n0", "n1", "n2"]
    facts = {node: gpu_node(node) if cards else cpu_node(node) for node in nodes[:2]}
    return Checked(Cluster({node: NodeRequest("10.0.0.1") for node in nodes}, facts), findings, 1.0, skipped)


def _results(busbw: float) -> dict[str, Any]:
    ranks = [{"rank": number, "node": f"n{number}", "local_rank": 0, "error": ""} for number in (0, 1)]
    result = {"groups": "node-pairs", "op": "send-recv", "ranks": [0, 1], "bytes": 1 << 20, "error": ""}
    times = {"time_s": 1.0, "fastest_s": 1.0, "busbw": busbw}
    return {"device": "cuda", "ranks": ranks, "results": [{**result, **times}]}


def test_nodes_without_a_failure_are_measured_as_a_launch_would_use_them() -> None:
    launch = benchmark_arguments("a.yaml", _checked(FAILED, WARNED))
    assert launch is not None
    assert (launch.inventory, launch.nodes) == ("a.yaml", "n0")
    assert not launch.no_check, "the network variables would not be discovered"
    assert set(launch.skipped) == set(CHECKS)
    assert launch.settings[:2] == ("groups=node,node-pairs", "devices=true")
    assert "sizes=64K:1M:16" in launch.settings
    of_cards = benchmark_arguments(None, _checked(cards=True))
    assert of_cards is not None
    assert of_cards.nodes == "n[0-1]"
    assert "sizes=64K:256M:64" in of_cards.settings


def test_skipped_measurements_are_left_out() -> None:
    launch = benchmark_arguments(None, _checked(skipped=("device", "all-reduce")))
    assert launch is not None
    assert "groups=node-pairs" in launch.settings
    assert "devices=true" not in launch.settings
    require_measurements(("bandwidth", "device"))
    with pytest.raises(UsageError, match="nothing is left to measure"):
        require_measurements(("bandwidth", "all-reduce"))


def test_findings_of_both_levels_are_sorted_and_nodes_that_were_not_measured_are_named() -> None:
    results = _results(1.0)
    results["ranks"][0]["error"] = "a product is not finite"
    checked = with_measurements(_checked(WARNED), results, 2.0)
    assert [(finding.severity.value, finding.check, finding.nodes) for finding in checked.findings] == [
        ("FAIL", "device", ("n0",)),
        ("WARN", "shm", ("n0",)),
        ("INFO", "benchmark", ("n2",)),
    ]
    assert (checked.seconds, checked.result("n0"), checked.result("n1")) == (3.0, "FAIL", "ok")


def test_benchmark_without_results_is_a_failure_of_the_measured_nodes() -> None:
    [finding, *_] = with_measurements(_checked(), None, 1.0).findings
    assert (finding.severity, finding.check, finding.nodes) == (Severity.FAIL, "benchmark", ("n0", "n1"))


def test_nothing_is_measured_if_no_node_passed() -> None:
    checked = _checked(Finding(Severity.FAIL, "versions", "torch differs", ("n0", "n1")))
    assert benchmark_arguments(None, checked) is None
    assert [finding.check for finding in with_measurements(checked, None, 0.0).findings] == ["versions", "benchmark"]


def test_bandwidths_are_shown_as_per_cent_of_the_networks_rate() -> None:
    checked = _checked(cards=True)
    rate = checked.cluster.facts["n0"]["hcas"][0]["ports"][0]["rate"]
    assert rate is not None
    assert list(bandwidth_rows(checked, _results(rate / 8 / 2))) == [
        ("1M", "1", f"{rate / 16:.3g}", f"{rate / 16:.3g}", f"{rate / 16:.3g}", "50 %")
    ]
