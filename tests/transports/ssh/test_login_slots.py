"""The limit of logins in progress: silent nodes do not count, and a closed transport leaves the queue."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from orchestrator.endpoint.access import transport_factory
from orchestrator.errors import LoginRefused, NodesError, OrchError, Unreachable
from orchestrator.fanout import map_parallel, successes
from orchestrator.inventory.model import Node, SshOptions
from orchestrator.transports.base import Channel
from orchestrator.transports.ssh import transport as ssh
from orchestrator.transports.ssh.login_queue import LoginQueue
from orchestrator.transports.ssh.transport import SshTransport
from tests.grounds.ports import silent_port
from tests.until import until


def _silent_logins(nodes: int, *, fanout: int) -> Sequence[Channel | OrchError]:
    with silent_port() as port:
        options = SshOptions(config=os.devnull, fanout=fanout, connect_timeout_s=1)
        transport_to = transport_factory("ssh", options)
        hosts = [Node(name=f"n{index}", address="127.0.0.1", port=port) for index in range(nodes)]
        return map_parallel(hosts, lambda node: transport_to(node).open(["true"]), limit=nodes)


def test_silent_nodes_wait_together_whatever_the_limit_of_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    """In login slots they would take forty times the connect timeout."""
    monkeypatch.setattr(ssh, "SILENT_S", 0.01)
    begun = time.monotonic()
    results = _silent_logins(80, fanout=2)
    assert time.monotonic() - begun < 20
    with pytest.raises(NodesError) as caught:
        successes(results)
    message = str(caught.value)
    assert message.startswith("n[0-79]: 127.0.0.1 port")
    assert message.endswith("timed out after 1 s (80 of 80)")


def test_slow_lookup_of_a_name_leaves_the_server_its_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The silence of a server begins when it is connected: a resolver may take longer than the connect timeout."""
    clock, allowed_s = [1000.0], list[float]()

    def connected(*_: object) -> socket.socket:
        clock[0] += 20
        return socket.socket()

    def answers(_: socket.socket, deadline: float) -> bool:
        allowed_s.append(deadline - clock[0])
        return deadline > clock[0]

    def log_in(_: SshTransport, __: object, sock: socket.socket) -> None:
        sock.close()
        raise LoginRefused("n0", "it has answered")

    monkeypatch.setattr(ssh, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(ssh, "_answers", answers)
    monkeypatch.setattr(SshTransport, "_connected", connected)
    monkeypatch.setattr(SshTransport, "_log_in", log_in)
    options = SshOptions(config=os.devnull, connect_timeout_s=10)
    with pytest.raises(LoginRefused, match="it has answered"):
        SshTransport(Node(name="n0", address="127.0.0.1"), options).open(["true"])
    assert allowed_s == [-17.0, 10.0]


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_transport_that_is_closed_during_its_login_is_unreachable(
    monkeypatch: pytest.MonkeyPatch, is_connected: bool
) -> None:
    """The next hop must not be connected to without its jump host."""
    transport = SshTransport(
        Node(name="n0", address="127.0.0.1"), SshOptions(config=os.devnull, proxy_jump="jump.invalid")
    )
    closed: list[object] = []

    class Closing:
        """A connection during whose login the transport is closed."""

        transport = SimpleNamespace(set_keepalive=closed.append) if is_connected else None
        client = SimpleNamespace(close=lambda: closed.append("client"))

        def open(self) -> None:
            assert not closed, "a second hop"
            transport.close()

    monkeypatch.setattr(SshTransport, "_prepared", lambda *_: Closing())
    with pytest.raises(Unreachable, match="closed before the login"):
        transport.open(["true"])
    assert set(closed) == {"client"}


def test_a_transport_that_is_closed_before_its_turn_makes_no_connection() -> None:
    waiting, freed = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def login_slot() -> Iterator[None]:
        waiting.set()
        assert freed.wait(10)
        yield

    transport = SshTransport(
        Node(name="n0", port=1), SshOptions(config=os.devnull), login_queue=LoginQueue(login_slot())
    )
    failures: list[BaseException] = []

    def open_() -> None:
        try:
            transport.open(["true"])
        except Unreachable as failure:
            failures.append(failure)

    thread = threading.Thread(target=open_)
    thread.start()
    assert waiting.wait(10)
    transport.close()
    freed.set()
    thread.join(10)
    until(lambda: failures, awaited="the queued login to end")
    assert "closed before the login" in str(failures[0])
