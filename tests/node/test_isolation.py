"""A node is isolated if it has neither a heartbeat of the supervisor nor an answer of a peer."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.node import isolation
from orchestrator.node.endpoint.report import observe_node
from orchestrator.node.isolation import SUPERVISED, Isolation, leave_heartbeat, reachable_hosts
from orchestrator.node.system.machine import host_id
from tests.grounds.ports import refusing_port, unreachable_port
from tests.node.agent.test_agent_ground import Ground, ground
from tests.until import until

__all__ = ["ground"]

ISOLATION_S = 1.2


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "SILENT_S", 0.0)
    monkeypatch.setattr(isolation, "PROBE_WAIT_S", 0.3)


def _isolation(folder: Path, port: int, *, is_head: bool) -> Isolation:
    return Isolation(str(folder), f"127.0.0.1 {port} h", is_head=is_head, timeout_s=ISOLATION_S)


def _peer(folder: Path, port: int) -> Isolation:
    return _isolation(folder, port, is_head=False)


def _longest_isolation_s(node: Isolation) -> float:
    """The longest isolation that is measured until the node has had no supervisor for twice the timeout."""
    measured_s = []

    def is_over() -> bool:
        measured_s.append(node.isolated_s())
        return node.unsupervised_s() >= 2 * ISOLATION_S

    until(is_over, awaited="twice the isolation timeout")
    return max(measured_s)


def test_refused_connection_is_an_answer_and_silence_is_none() -> None:
    with unreachable_port() as silent:
        assert reachable_hosts(["127.0.0.1"], silent) == []
    with refusing_port() as port:
        assert reachable_hosts(["127.0.0.1"], port) == ["127.0.0.1"]


def test_node_without_supervisor_and_peers_is_isolated(tmp_path: Path) -> None:
    with unreachable_port() as port, closing(_peer(tmp_path, port)) as node:
        until(lambda: node.isolated_s() > ISOLATION_S, awaited="the isolation")


def test_node_that_reaches_a_peer_is_not_isolated_without_a_supervisor(tmp_path: Path) -> None:
    with refusing_port() as port, closing(_peer(tmp_path, port)) as node:
        assert _longest_isolation_s(node) < ISOLATION_S / 2


def test_heartbeat_ends_the_silence(tmp_path: Path) -> None:
    node = _peer(tmp_path, 1)
    until(lambda: node.unsupervised_s() > 0.2, awaited="some silence")
    leave_heartbeat(str(tmp_path), [])
    assert node.unsupervised_s() < 0.2


def test_heartbeat_records_the_peers_addresses_in_one_file(tmp_path: Path) -> None:
    for peers in (["10.0.0.2"], ["10.0.0.2", "fe80::1"], ["10.0.0.2", "fe80::1"]):
        leave_heartbeat(str(tmp_path), peers)
        assert (tmp_path / SUPERVISED).read_text().split() == peers
    assert [path.name for path in tmp_path.iterdir()] == [SUPERVISED]


def test_head_whose_peers_never_answered_is_not_isolated(tmp_path: Path) -> None:
    """A firewall may drop every probe: then silence proves nothing."""
    leave_heartbeat(str(tmp_path), ["127.0.0.1"])
    with unreachable_port() as port, closing(_isolation(tmp_path, port, is_head=True)) as head:
        assert _longest_isolation_s(head) == 0.0


def test_head_reports_that_a_peer_has_answered_and_is_isolated_when_none_does(tmp_path: Path) -> None:
    leave_heartbeat(str(tmp_path), ["127.0.0.1"])
    with refusing_port() as port, closing(_isolation(tmp_path, port, is_head=True)) as head:
        assert not observe_node("n0", str(tmp_path))["peer_answered"]

        def is_reported() -> bool:
            head.isolated_s()
            return observe_node("n0", str(tmp_path))["peer_answered"]

        until(is_reported, awaited="the answer of the peer")
        leave_heartbeat(str(tmp_path), [])  # no probe is answered from now on
        until(lambda: head.isolated_s() > ISOLATION_S, awaited="the isolation")


def test_suspension_of_the_whole_host_is_no_isolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with unreachable_port() as port, closing(_peer(tmp_path, port)) as node:
        node.isolated_s()
        monotonic = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 100)
        assert node.isolated_s() < ISOLATION_S


def test_isolated_agent_ends_its_ranks_and_records_the_reason(ground: Ground) -> None:
    with unreachable_port() as port:
        ground.job("sleep", "1000", ranks=[1, 1], isolation_timeout_s=1.0)
        code, _ = ground.run(1, rendezvous=f"127.0.0.1 {port} {host_id()}")
    assert code == 1
    assert "cut off from the supervisor and from all other nodes" in ground.finished(1)["text"]
    assert ground.finished(1)["state"] == "FAILED"


def test_orphaned_agent_stops_its_ranks(ground: Ground) -> None:
    ground.job("sleep", "1000", orphan_timeout_s=0.5)
    code, _ = ground.run()
    assert (code, ground.finished()["state"]) == (1, "FAILED")
    assert "no supervisor" in ground.finished()["text"]
