"""The port that listens while nodes are checked."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from orchestrator.node import isolation
from orchestrator.node.endpoint.ports import Listener
from orchestrator.node.isolation import connect_error
from tests.grounds.ports import refusing_port, unreachable_port

LOOPBACK = "127.0.0.1"


def test_only_a_connection_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Listener([LOOPBACK], {})) as listener:
        address, number, _ = listener.record.split()
        assert connect_error(address, int(number)) == ""
    with refusing_port() as port:  # as by a firewall that rejects
        assert connect_error(LOOPBACK, port) == "connection refused"
    monkeypatch.setattr(isolation, "PROBE_WAIT_S", 0.1)
    with unreachable_port() as port:
        assert connect_error(LOOPBACK, port) == "no answer within 0.1 s"


def test_closed_port_is_free_for_everybody() -> None:
    listener = Listener([LOOPBACK], {})
    port = int(listener.record.split()[1])
    peers = [socket.create_connection((LOOPBACK, port)) for _ in range(3)]
    listener.close()
    assert connect_error(LOOPBACK, port) == "connection refused"
    with socket.socket() as bound:  # without SO_REUSEADDR, which connections in TIME_WAIT would refuse
        bound.bind((LOOPBACK, port))
    for peer in peers:
        peer.close()
