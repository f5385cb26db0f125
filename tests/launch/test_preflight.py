"""The queries of a check: deadlines on idle connections, and on those that a launch uses at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from orchestrator.endpoint.connection import ANSWER_S
from orchestrator.fanout import map_within
from orchestrator.launch import preflight
from orchestrator.launch.preflight import FACTS_S, PORT_S, TOKEN_S, CheckedNode, survey
from orchestrator.launchers.rendezvous import INTERFACES
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.checks.quick import check
from orchestrator.portable.environment.discovery import discover
from orchestrator.portable.environment.request import NodeRequest
from tests.portable.checks.facts import cluster, cpu_node, gpu_node
from tests.portable.environment.nodes import infiniband
from tests.usecases.stub_nodes import StubNodes


def test_requests_on_idle_connections_have_short_deadlines() -> None:
    nodes = StubNodes(cluster(gpu_node, 3, "cuda", 2))
    surveyed = survey(nodes.checked, nodes.reach)
    assert surveyed.rendezvous is not None
    assert surveyed.shared
    markers = dict.fromkeys(("write_marker", "find_marker", "remove_marker"), TOKEN_S)
    assert nodes.deadlines == {
        "clock_ahead": FACTS_S,
        "probe": FACTS_S,
        "listen": PORT_S,
        "stop_listening": PORT_S,
        **markers,
    }


def test_busy_connection_is_waited_for_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def recorded(*args: Any, wait_s: float, limit: int) -> object:  # any work
        waited.append(wait_s)
        return map_within(*args, wait_s=wait_s, limit=limit)

    monkeypatch.setattr(preflight, "map_within", recorded)
    nodes = StubNodes(cluster(gpu_node, 3, "cuda", 2))
    assert check(survey(nodes.checked, nodes.reach, busy_s=600.0)) == []
    assert waited == [FACTS_S + 600, PORT_S + 600, TOKEN_S + 600]  # a bundle may be sent for so long
    # a request that misses its deadline closes the connection, and the launch needs it
    assert (
        min(nodes.deadlines[name] for name in ("listen", "stop_listening", "write_marker", "find_marker")) >= ANSWER_S
    )


@pytest.mark.parametrize("kind", ["ext4", "9p", "virtiofs", "fuse.fuse-overlayfs"])
def test_file_system_that_one_machine_may_have_alone_is_not_tested_on_others(kind: str) -> None:
    nodes = cluster(gpu_node, 3, "cuda", 2)
    for facts in nodes.facts.values():
        facts["disks"][0]["type"] = kind
    stubs = StubNodes(nodes)
    assert survey(stubs.checked, stubs.reach).shared == []


@pytest.mark.parametrize(
    ("addresses", "workdir", "queried"),
    [
        (("127.0.0.1", "127.0.0.2", "127.0.0.3"), "/data", ["n0"]),
        (("127.0.0.1", "127.0.0.2", "127.0.0.3"), "/other", ["n0", "n2"]),
        (("10.0.0.1", "10.0.0.1", "127.0.0.3"), "/data", ["n0", "n1", "n2"]),  # containers, or a wrong address
    ],
)
def test_loopback_nodes_with_equal_folders_are_queried_once(
    addresses: Sequence[str], workdir: str, queried: Sequence[str]
) -> None:
    nodes = StubNodes(cluster(cpu_node, 3))
    for node in nodes.by_name.values():
        node.facts.host_id = "one machine"
    folders = [{"workdir": "/data"}, {"workdir": "/data"}, {"workdir": workdir}]
    checked = [
        CheckedNode(node.name, replace(node.expected, address=address), of_node)
        for node, address, of_node in zip(nodes.checked, addresses, folders, strict=True)
    ]
    surveyed = survey(checked, nodes.reach)
    assert [name for name, node in nodes.by_name.items() if "probe" in node.deadlines] == queried
    assert {name: facts["node"] for name, facts in surveyed.facts.items()} == {name: name for name in nodes.by_name}
    assert list(surveyed.clocks) == list(surveyed.expected) == list(nodes.by_name)


def test_node_that_cannot_connect_to_the_head_is_named_and_the_port_is_closed() -> None:
    nodes = StubNodes(cluster(gpu_node, 3, "cuda", 2))
    nodes.by_name["n2"].refusal = "connection refused"
    surveyed = survey(nodes.checked, nodes.reach)
    assert surveyed.rendezvous is not None
    assert surveyed.rendezvous.unreachable == {"n2": "connection refused"}
    assert not nodes.by_name["n0"].listens


@pytest.mark.parametrize("has_peers_elsewhere", [True, False])
def test_loopback_address_of_the_head_is_refused_as_by_a_launch(*, has_peers_elsewhere: bool) -> None:
    nodes = StubNodes(cluster(cpu_node, 2))
    for node in nodes.by_name.values():
        node.facts.host_id = node.facts.host_id if has_peers_elsewhere else "one machine"
    checked = [replace(node, expected=replace(node.expected, address="127.0.0.1")) for node in nodes.checked]
    found = [finding for finding in check(survey(checked, nodes.reach)) if finding.check == "port"]
    assert [finding.nodes for finding in found] == ([("n0",)] if has_peers_elsewhere else [])
    if found:
        assert "127.0.0.1, a loopback address, but n1 is on other machines" in found[0].text
        assert "give n0 a routable address" in found[0].remedy
        assert not nodes.by_name["n0"].listens


def test_port_is_tested_on_the_network_that_the_launch_will_use() -> None:
    expected = {f"n{k}": NodeRequest(f"10.0.0.{k + 1}", 2, "cuda") for k in range(2)}
    nodes = StubNodes(Cluster(expected, {name: infiniband(k) for k, name in enumerate(expected)}))
    surveyed = survey(nodes.checked, nodes.reach)
    discovered = discover(surveyed.facts, surveyed.expected).environment("n0")
    assert discovered["NCCL_SOCKET_IFNAME"]
    assert nodes.by_name["n0"].interfaces == {name: discovered[name] for name in INTERFACES if name in discovered}


def test_code_that_changes_while_it_is_read_is_not_compared() -> None:
    """n0 reads the shared folder before a file is written (`a`), and n1 after that (`b`); then both read `b`."""
    nodes = StubNodes(cluster(cpu_node, 3))
    readings = {"n0": iter("ab"), "n1": iter("bb"), "n2": iter("bb")}
    for name, node in nodes.by_name.items():
        node.code_digest = partial(next, readings[name])
    found = survey(nodes.checked, nodes.reach, code="/data")
    assert [facts["code"] and facts["code"]["digest"] for facts in found.facts.values()] == [None, "b", "b"]


def test_code_that_differs_in_both_readings_is_compared() -> None:
    nodes = StubNodes(cluster(cpu_node, 2))
    for name, node in nodes.by_name.items():
        node.code_digest = partial(str, name)
    found = survey(nodes.checked, nodes.reach, code="/data")
    assert [facts["code"] and facts["code"]["digest"] for facts in found.facts.values()] == ["n0", "n1"]


def test_paths_in_variables_are_tested_but_secret_ones_and_lists() -> None:
    nodes = StubNodes(cluster(cpu_node, 1))
    env = {"MODEL": "/models/x", "TOKEN": "/a/secret", "LD_LIBRARY_PATH": "/a:/b", "WORD": "x", "DATA": "/data"}
    [checked] = nodes.checked
    expected = replace(checked.expected, env=env, private=frozenset({"TOKEN"}))
    required = {"paths": ["/data"], "imports": ["mmcv"]}
    surveyed = survey([replace(checked, expected=expected, required=required)], nodes.reach)
    assert surveyed.problems["n0"] == [
        ("path", "/data", "missing"),
        ("import", "mmcv", "missing"),
        ("variable", "MODEL=/models/x", "missing"),
        ("variable", "DATA=/data", "missing"),
    ]
    assert survey(nodes.checked, nodes.reach).problems == {}


def test_modules_and_commands_have_time_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def recorded(*args: Any, wait_s: float, limit: int) -> object:  # any work
        waited.append(wait_s)
        return map_within(*args, wait_s=wait_s, limit=limit)

    monkeypatch.setattr(preflight, "map_within", recorded)
    nodes = StubNodes(cluster(cpu_node, 1))
    survey([replace(nodes.checked[0], required={"imports": ["a"], "commands": ["b"]})], nodes.reach)
    assert waited[0] == FACTS_S + 2 * preflight.REQUIRED_S
