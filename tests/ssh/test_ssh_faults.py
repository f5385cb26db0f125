"""Servers that refuse, hang or change their key: which failures are retried, and that no node delays another one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from orchestrator.errors import NodeError, NotListening, Unreachable
from orchestrator.fanout import map_parallel
from orchestrator.inventory.model import Node, SshOptions
from orchestrator.transports.ssh import transport as ssh
from orchestrator.transports.ssh.transport import SshTransport
from tests.grounds.ports import refusing_port, silent_port
from tests.grounds.sshd import Farm, make_key
from tests.grounds.stuck import resetting, stuck_after_banner, stuck_in_login
from tests.until import until


def login(node: Node, **ssh: object) -> None:
    """Log in and out."""
    transport = SshTransport(node, SshOptions.model_validate(ssh))
    try:
        transport.open(["true"])
    finally:
        transport.close()


def refusal(config: Path, **ssh: object) -> str:
    with pytest.raises(NodeError) as caught:
        login(Node(name="n0"), config=str(config), connect_timeout_s=30, **ssh)
    assert not isinstance(caught.value, Unreachable)
    return str(caught.value)


def wrong_key(farm: Farm, folder: Path) -> Path:
    shutil.copy(farm.folder / "host_key", folder / "key")
    return farm.write_ssh_config(folder / "config", IdentityFile=str(folder / "key"))


def test_a_wrong_key_is_offered_once_over_one_connection(farm: Farm, tmp_path: Path) -> None:
    with farm.counted() as connections:
        assert "no key was accepted (1 refused)" in refusal(wrong_key(farm, tmp_path))
        assert connections() == 1


def test_a_key_is_not_offered_twice_when_sshd_hangs_up_over_it(farm: Farm, tmp_path: Path) -> None:
    with farm.counted(MaxAuthTries="1") as connections:
        assert "the node reports: Too many authentication failures" in refusal(wrong_key(farm, tmp_path))
        assert connections() == 1


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_changed_host_key_is_checked_over_one_connection(farm: Farm, tmp_path: Path, host_keys: str) -> None:
    known = tmp_path / "known"
    public = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    known.write_text(f"[127.0.0.10]:{farm.port} {public}")
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=known)
    with farm.counted() as connections:
        assert "has changed" in refusal(config, host_keys=host_keys)
        assert connections() == 1


def test_an_unknown_host_key_is_checked_over_one_connection_and_no_user_key_is_offered(
    farm: Farm, tmp_path: Path
) -> None:
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=tmp_path / "none")
    with farm.counted() as connections:
        assert "is unknown" in refusal(config)
        assert connections() == 1
    assert b"Accepted publickey" not in (farm.folder / "sshd.log").read_bytes().split(b"Server listening")[-1]


@pytest.fixture
def host_key(farm: Farm) -> Path:
    return farm.folder / "host_key"


@contextlib.contextmanager
def _known(
    farm: Farm,
    folder: Path,
    gate: threading.Event,
    host_key: Path,
    *,
    hang_up: list[paramiko.PKey] | None = None,
    requests: list[str] | None = None,
) -> Iterator[dict[str, object]]:
    """Run the stand-in that delays logins; yields the configuration and port to reach it."""
    known = folder / "known-stuck"
    with stuck_in_login(host_key, gate, hang_up=hang_up, requests=requests) as port:
        public = host_key.with_suffix(".pub").read_text()
        known.write_text(f"[127.0.0.*]:{port} {public}{farm.known_hosts.read_text()}")
        yield {"config": str(farm.write_ssh_config(folder / "stuck", known_hosts=known)), "port": port}


def test_a_key_is_not_offered_twice_to_a_server_that_hangs_up(farm: Farm, tmp_path: Path, host_key: Path) -> None:
    offered_keys: list[paramiko.PKey] = []
    with _known(farm, tmp_path, threading.Event(), host_key, hang_up=offered_keys) as server:
        node = Node.model_validate({"name": "n0", "address": "127.0.0.10", "port": server["port"]})
        with pytest.raises(Unreachable, match="hung up during the login"):
            login(node, config=server["config"], connect_timeout_s=30)
    assert len(offered_keys) == 1


def test_a_reset_is_retried_with_growing_pauses_until_the_timeout(farm: Farm) -> None:
    connections: list[socket.socket] = []
    with resetting(connections) as port, pytest.raises(Unreachable, match="hung up before the login"):
        login(Node(name="n0", port=port), config=str(farm.ssh_config), connect_timeout_s=2)
    assert 2 <= len(connections) <= 10


def test_a_node_that_hangs_up_once_is_reached_by_a_retry(farm: Farm, tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_text(
        f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit; }}\nexec ssh -F {farm.ssh_config} -W $1 n3\n"
    )
    config = farm.write_ssh_config(tmp_path / "config", ProxyCommand=f"sh {server} %h:%p")
    login(Node(name="n0"), config=str(config), connect_timeout_s=10)
    assert (tmp_path / "tried").exists()


def test_a_login_may_take_longer_than_the_connect_timeout(farm: Farm, tmp_path: Path, host_key: Path) -> None:
    gate = threading.Event()
    with _known(farm, tmp_path, gate, host_key) as server:
        slowly = threading.Timer(1.5, gate.set)
        slowly.start()
        node = Node.model_validate({"name": "n0", "address": "127.0.0.10", "port": server["port"]})
        # the login succeeded; the stand-in has no shell
        with pytest.raises(Unreachable, match="the server refuses to start programs"):
            login(node, config=server["config"], connect_timeout_s=1)
        slowly.join()


def test_a_login_that_never_ends_times_out(farm: Farm, tmp_path: Path, host_key: Path) -> None:
    with _known(farm, tmp_path, threading.Event(), host_key) as server:
        node = Node.model_validate({"name": "n0", "address": "127.0.0.10", "port": server["port"]})
        begun = time.monotonic()
        with pytest.raises(Unreachable, match="no answer to the login for 3 s"):
            login(node, config=server["config"], connect_timeout_s=1)
        assert time.monotonic() - begun < 30


def test_a_node_that_stops_before_it_has_started_the_program_times_out(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sshd is stopped after it has opened the session and before the request for the program."""
    stopped: list[int] = []
    open_session = paramiko.Transport.open_session

    def opened(transport: paramiko.Transport, **options: float) -> paramiko.Channel:
        channel = open_session(transport, **options)  # type: ignore[arg-type]  # forwarded unchanged
        stopped.extend(farm.connections())
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        return channel

    monkeypatch.setattr(paramiko.Transport, "open_session", opened)
    begun = time.monotonic()
    try:
        with pytest.raises(Unreachable, match="the node starts no program: no answer for 3 s"):
            login(Node(name="n0"), config=str(farm.ssh_config), connect_timeout_s=1)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert stopped
    assert time.monotonic() - begun < 40


def _raise_eof(_packetizer: object, _data: bytes) -> None:
    raise EOFError


def test_a_channel_closes_without_error_after_its_connection_is_lost(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends between paramiko's check that it is open and its message that the channel is closed."""
    transport = SshTransport(Node(name="n0"), SshOptions(config=str(farm.ssh_config)))
    try:
        channel = transport.open(["cat"])
        with monkeypatch.context() as patch:
            patch.setattr(paramiko.packet.Packetizer, "write_all", _raise_eof)
            channel.close()
    finally:
        transport.close()


def test_a_server_that_sends_only_its_banner_times_out(farm: Farm) -> None:
    with stuck_after_banner() as port:
        begun = time.monotonic()
        with pytest.raises(Unreachable, match=rf"port {port}: timed out after 1 s"):
            login(Node(name="n0", port=port), config=str(farm.ssh_config), connect_timeout_s=1)
        assert time.monotonic() - begun < 30  # paramiko's own timeout for the key exchange is longer


@pytest.mark.parametrize(("fanout", "behind"), [(14, 0), (3, 2)])
def test_hanging_hosts_delay_others_by_no_more_than_their_timeouts(
    farm: Farm, tmp_path: Path, host_key: Path, fanout: int, behind: int
) -> None:
    """Seven hosts hang, in every stage of a login, and come first; seven work. `behind`: how many hanging logins may precede one."""
    with (
        silent_port() as silent,
        stuck_after_banner() as banner_only,
        _known(farm, tmp_path, threading.Event(), host_key) as server,
    ):
        ports = [silent, banner_only, silent, banner_only, silent, server["port"], server["port"]]
        nodes = [
            Node.model_validate({"name": f"h{i}", "address": "127.0.0.10", "port": p}) for i, p in enumerate(ports)
        ]
        nodes += [Node(name=f"n{index}") for index in range(7)]
        took: dict[str, float] = {}
        begun = time.monotonic()

        def work(node: Node) -> None:
            config = server["config"] if node.port == server["port"] else str(farm.ssh_config)
            try:
                login(node, config=config, connect_timeout_s=3)
            finally:
                took[node.name] = time.monotonic() - begun

        results = map_parallel(nodes, work, limit=fanout)
    assert [type(result) for result in results] == [Unreachable] * 7 + [type(None)] * 7
    hanging_s, working_s = (max(took[node.name] for node in group) for group in (nodes[:7], nodes[7:]))
    assert behind or working_s < hanging_s  # all working hosts before the last hanging one times out
    assert working_s < 60


def test_a_proxy_command_that_ignores_sigterm_is_killed(farm: Farm, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "stubborn"
    script.write_text(f"trap '' TERM\necho $$ > {pids}\nwhile :; do sleep 1000; done\n")
    config = farm.write_ssh_config(tmp_path / "config", ProxyCommand=f"sh {script}")
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="timed out after 1 s"):
        login(Node(name="n0"), config=str(config), connect_timeout_s=1)
    assert time.monotonic() - begun < 15
    group = int(pids.read_text())
    until(lambda: _is_gone(group), awaited="the proxy command and its children to end")


def _is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_keepalives_are_sent_on_every_connection_of_a_jump(
    farm: Farm, tmp_path: Path, host_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jump host is a real sshd, which logs keepalives; the node behind it is the stand-in."""
    monkeypatch.setattr(ssh, "KEEPALIVE_S", 1)
    requests: list[str] = []
    gate = threading.Event()
    gate.set()
    log = farm.folder / "sshd.log"
    with (
        farm.restarted(LogLevel="DEBUG1"),
        _known(farm, tmp_path, gate, host_key, requests=requests) as server,
    ):
        begin = log.stat().st_size
        node = Node.model_validate({"name": "n0", "address": "127.0.0.10", "port": server["port"]})
        transport = SshTransport(node, SshOptions.model_validate({"config": server["config"], "proxy_jump": "n1"}))
        # the login has succeeded and stays open
        with pytest.raises(Unreachable, match="the server refuses to start programs"):
            transport.open(["true"])
        until(lambda: "keepalive@lag.net" in requests, awaited="a keepalive to the node")
        # one to the node passes the jump host, whose own one then is not due: each may come before the other every time
        transport._connections[-1].transport.set_keepalive(0)
        until(
            lambda: b"keepalive@lag.net" in log.read_bytes()[begin:],
            awaited=lambda: f"a keepalive to the jump host; the node received {requests}; {log.read_bytes()[begin:]!r}",
        )
        transport.close()


def test_only_a_refusal_by_the_node_itself_is_not_listening(farm: Farm) -> None:
    with refusing_port() as port:
        with pytest.raises(NotListening):
            login(Node(name="n0", port=port), config=str(farm.ssh_config))
        for jump, node in ((f"127.0.0.11:{port}", Node(name="n0")), ("n1", Node(name="n0", port=port))):
            with pytest.raises(Unreachable) as caught:
                login(node, config=str(farm.ssh_config), proxy_jump=jump)
            assert not isinstance(caught.value, NotListening)


def test_a_jump_host_that_cannot_connect_is_named(farm: Farm) -> None:
    with refusing_port() as port, pytest.raises(Unreachable) as caught:
        login(Node(name="node", address="n0", port=port), config=str(farm.ssh_config), proxy_jump="n1")
    assert str(caught.value) == f"node: 127.0.0.10 port {port}: the jump host cannot connect to it (connect failed)"


def test_a_name_that_is_not_resolved_is_named_once(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("")
    with pytest.raises(Unreachable) as caught:
        login(Node(name="nope1.invalid"), config=str(config))
    assert str(caught.value) == "nope1.invalid: name not resolved"
