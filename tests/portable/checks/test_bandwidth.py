"""The slow node or link from a matrix of bandwidths."""

from __future__ import annotations

from itertools import combinations

import pytest

from orchestrator.portable.checks.bandwidth import Pair, compare_nodes, compare_pairs
from orchestrator.portable.findings import Finding, Severity

USUAL = 10.0


def _pairs(count: int, changed: dict[str, float | None]) -> list[Pair]:
    """Pairs of n0, n1, … with the usual bandwidth; `changed` has others by node (`3`) or pair (`01`), a pair wins."""
    made = []
    for first, second in combinations(range(count), 2):
        keys = [f"{first}{second}", str(first), str(second)]
        bandwidth = next((changed[key] for key in keys if key in changed), USUAL + 0.1 * first)
        made.append(Pair(f"n{first}", f"n{second}", bandwidth, "" if bandwidth is not None else "Timed out"))
    return made


def _found(pairs: list[Pair], nominal: float | None = None) -> list[Finding]:
    rates = {} if nominal is None else {node: nominal for pair in pairs for node in pair.nodes}
    return list(compare_pairs(pairs, rates))


@pytest.mark.parametrize("count", [0, 2, 3, 4, 9])
def test_equal_pairs_have_no_finding(count: int) -> None:
    assert _found(_pairs(count, {})) == []


@pytest.mark.parametrize("count", [3, 4, 5, 8])
@pytest.mark.parametrize(
    ("bandwidth", "severity"), [(0.1, Severity.FAIL), (4.9, Severity.FAIL), (6.0, Severity.WARN), (None, Severity.FAIL)]
)
def test_slow_or_dead_node_is_named(count: int, bandwidth: float | None, severity: Severity) -> None:
    [finding] = _found(_pairs(count, {"1": bandwidth}))
    assert (finding.severity, finding.nodes) == (severity, ("n1",))
    slow = f"n1 is slow with {count - 1} of {count - 1} other nodes; 10"
    word = "cannot communicate with any other node" if bandwidth is None else slow
    assert word in finding.text


@pytest.mark.parametrize("count", [3, 4, 5, 8])
@pytest.mark.parametrize(
    ("bandwidth", "word"), [(0.1, "the link between n0 and n2 is slow"), (None, "no communication between")]
)
def test_slow_or_dead_link_is_named(count: int, bandwidth: float | None, word: str) -> None:
    [finding] = _found(_pairs(count, {"02": bandwidth}))
    assert (finding.severity, finding.nodes) == (Severity.FAIL, ("n0", "n2"))
    assert word in finding.text
    assert "both are sound with other nodes" in finding.text


def test_slow_node_and_slow_link_in_one_matrix() -> None:
    assert [finding.nodes for finding in _found(_pairs(4, {"3": 0.1, "01": 0.1}))] == [("n3",), ("n0", "n1")]


def test_two_slow_nodes_of_five_are_both_named() -> None:
    findings = _found(_pairs(5, {"1": 0.1, "4": None}))
    assert sorted(finding.nodes for finding in findings) == [("n1",), ("n4",)]


def test_half_of_the_nodes_do_not_make_slow_usual() -> None:
    findings = _found(_pairs(4, {"1": 4.0, "3": 4.0}))
    assert sorted((finding.severity, finding.nodes) for finding in findings) == [
        (Severity.FAIL, ("n1",)),
        (Severity.FAIL, ("n3",)),
    ]


def test_slightly_slow_link_beside_a_slow_node_is_a_warning() -> None:
    findings = _found(_pairs(5, {"4": 0.1, "01": 7.0}))
    assert [(finding.severity, finding.nodes) for finding in findings] == [
        (Severity.FAIL, ("n4",)),
        (Severity.WARN, ("n0", "n1")),
    ]


def test_slow_node_is_named_although_another_is_a_little_slow_with_all() -> None:
    """As on a busy machine: n0 has three pairs below half of the usual bandwidth, but only n3 is very slow."""
    findings = _found(_pairs(4, {"3": 0.05, "01": 0.05, "02": 3.0}))
    assert [finding.nodes for finding in findings] == [("n3",), ("n0", "n1"), ("n0", "n2")]


def test_node_with_dead_and_slow_pairs_is_both() -> None:
    [finding] = _found(_pairs(4, {"01": None, "12": 0.1}))
    assert finding.text.startswith("n1 is slow or dead with 2 of 3 other nodes; ")


def test_with_two_nodes_neither_is_named_as_the_cause() -> None:
    assert _found(_pairs(2, {"01": 0.1})) == []
    [finding] = _found(_pairs(2, {"01": None}))
    assert finding.nodes == ("n0", "n1")
    assert "neither can be named" in finding.text
    assert finding.evidence == "n0-n1 failed: Timed out"


def test_all_pairs_far_below_the_networks_rate_are_one_warning() -> None:
    assert _found(_pairs(3, {}), nominal=15) == []
    [finding] = _found(_pairs(3, {}), nominal=50)
    assert (finding.severity, finding.nodes) == (Severity.WARN, ("n0", "n1", "n2"))
    assert "n0-n1 10 GB/s, 20 % of the network's rate" in finding.evidence


def test_all_nodes_dead_are_all_named() -> None:
    findings = _found(_pairs(4, {"0": None, "1": None, "2": None, "3": None}))
    assert {node for finding in findings for node in finding.nodes} == {"n0", "n1", "n2", "n3"}


def test_slow_all_reduce_inside_a_node() -> None:
    assert list(compare_nodes({"n0": 10.0, "n1": 9.0}, {})) == []
    slow, failed = compare_nodes({"n0": 10.0, "n1": 2.0, "n2": None, "n3": 11.0}, {"n2": "Timed out"})
    assert (slow.severity, slow.nodes) == (Severity.FAIL, ("n1",))
    assert (failed.severity, failed.nodes, failed.evidence) == (Severity.FAIL, ("n2",), "Timed out")
