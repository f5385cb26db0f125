"""The check of the variables that a launch would set."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.checks.network import variables
from orchestrator.portable.environment.request import NodeRequest
from orchestrator.portable.findings import Severity
from tests.portable.environment.nodes import infiniband


def _cluster(count: int, **env: str) -> Cluster:
    expected = {f"n{k}": NodeRequest(f"10.0.0.{k + 1}", 2, "cuda", env=env) for k in range(count)}
    return Cluster(expected, {f"n{k}": infiniband(k) for k in range(count)})


def test_interface_that_the_nodes_lack_fails_under_the_name_of_the_check() -> None:
    (found,) = variables(_cluster(2, NCCL_SOCKET_IFNAME="=ib0"))
    assert (found.severity, found.check, found.nodes) == (Severity.FAIL, "variables", ("n0", "n1"))
    assert not list(variables(_cluster(2)))
    assert not list(variables(_cluster(1, NCCL_SOCKET_IFNAME="=ib0")))


def test_values_of_a_node_that_setup_lines_may_change_are_not_judged() -> None:
    cluster = _cluster(2)
    cluster.facts["n1"]["environment"]["NCCL_SOCKET_IFNAME"] = "=ib0"
    assert [found.nodes for found in variables(cluster)] == [("n1",)]
    with_setup = {name: replace(node, has_setup=True) for name, node in cluster.expected.items()}
    assert not list(variables(replace(cluster, expected=with_setup)))


def test_private_value_is_in_no_finding() -> None:
    cluster = _cluster(2, NCCL_SOCKET_IFNAME="hunter2")
    private = {name: replace(node, private=frozenset(node.env)) for name, node in cluster.expected.items()}
    assert not list(variables(replace(cluster, expected=private)))
