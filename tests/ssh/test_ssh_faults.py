"""Servers that refuse, hang or change: who is tried again, who never is, and that nobody waits for somebody else."""

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
from orchestrator.fanout import each
from orchestrator.inventory.model import Node, SshOptions
from orchestrator.transports.ssh import transport as ssh
from orchestrator.transports.ssh.transport import SshTransport
from tests.grounds.ports import refusing_port, silent_port
from tests.grounds.sshd import Farm, make_key
from tests.grounds.stuck import resetting, stuck_after_banner, stuck_in_login
from tests.until import until


def login(node: Node, **ssh: object) -> None:
    """Log in and out again."""
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


def test_a_key_is_not_offered_again_when_sshd_hangs_up_over_it(farm: Farm, tmp_path: Path) -> None:
    with farm.counted(MaxAuthTries="1") as connections:
        assert "the node says: Too many authentication failures" in refusal(wrong_key(farm, tmp_path))
        assert connections() == 1


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_changed_host_key_is_looked_at_once(farm: Farm, tmp_path: Path, host_keys: str) -> None:
    known = tmp_path / "known"
    public = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    known.write_text(f"[127.0.0.10]:{farm.port} {public}")
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=known)
    with farm.counted() as connections:
        assert "has changed" in refusal(config, host_keys=host_keys)
        assert connections() == 1


def test_an_unknown_host_key_is_looked_at_once_and_no_key_of_ours_is_shown(farm: Farm, tmp_path: Path) -> None:
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
    """The stand-in that is slow to let in, and how to reach it."""
    known = folder / "known-stuck"
    with stuck_in_login(host_key, gate, hang_up=hang_up, requests=requests) as port:
        public = host_key.with_suffix(".pub").read_text()
        known.write_text(f"[127.0.0.*]:{port} {public}{farm.known_hosts.read_text()}")
        yield {"config": str(farm.write_ssh_config(folder / "stuck", known_hosts=known)), "port": port}


def test_a_key_is_not_shown_again_to_a_server_that_hangs_up_without_a_word(
    farm: Farm, tmp_path: Path, host_key: Path
) -> None:
    seen: list[paramiko.PKey] = []
    with _known(farm, tmp_path, threading.Event(), host_key, hang_up=seen) as way:
        node = Node.model_validate({"name": "n0", "address": "127.0.0.10", "port": way["port"]})
        with pytest.raises(Unreachable, match="hung up during the login"):
            login(node, config=way["config"], connect_timeout_s=30)
    assert len(seen) == 1


def test_a_reset_is_tried_again_with_growing_pauses_until_the_time_is_over(farm: Farm) -> None:
    connections: list[socket.socket] = []
    with resetting(connections) as port, pytest.raises(Unreachable, match="hung up before the login"):
        login(Node(name="n0", port=port), config=str(farm.ssh_config), connect_timeout_s=2)
    assert 2 <= len(connections) <= 10


def test_a_node_that_hangs_up_once_is_reached_the_second_time(farm: Farm, tmp_path: Path) -> None:
    way = tmp_path / "way"
    way.write_text(
        f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit; }}\nexec ssh -F {farm.ssh_config} -W $1 n3\n"
    )
    config = farm.write_ssh_config(tmp_path / "config", ProxyCommand=f"sh {way} %h:%p")
    login(Node(name="n0"), config=str(config), connect_timeout_s=10)
    assert (tmp_path / "tried").exists()


def test_a_login_that_takes_longer_than_the_connection_may_is_waited_for(
    farm: Farm, tmp_path: Path, host_key: Path
) -> None:
    gate = threading.Event()
    with _known(farm, tmp_path, gate, host_key) as way:
        slowly = threading.Timer(1.5, gate.set)
        slowly.start()
        node = Node.model_validate({"name": "n0", "address": "127.0.0.10", "port": way["port"]})
        with pytest.raises(Unreachable, match="the node starts no program"):  # it is in; the stand-in has no shell
            login(node, config=way["config"], connect_timeout_s=1)
        slowly.join()


def test_a_login_that_never_ends_is_given_up(farm: Farm, tmp_path: Path, host_key: Path) -> None:
    with _known(farm, tmp_path, threading.Event(), host_key) as way:
        node = Node.model_validate({"name": "n0", "address": "127.0.0.10", "port": way["port"]})
        begun = time.monotonic()
        with pytest.raises(Unreachable, match="no answer to the login for 3 s"):
            login(node, config=way["config"], connect_timeout_s=1)
        assert time.monotonic() - begun < 10


def test_a_node_that_stops_before_it_has_started_the_program_is_given_up(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sshd is stopped when it has opened the session and has not been asked for the program yet."""
    stopped: list[int] = []
    open_session = paramiko.Transport.open_session

    def opened(transport: paramiko.Transport, **options: float) -> paramiko.Channel:
        channel = open_session(transport, **options)  # type: ignore[arg-type]  # passed on as they are
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
    assert time.monotonic() - begun < 20


def _connection_has_gone(_packetizer: object, _data: bytes) -> None:
    raise EOFError


def test_a_channel_is_closed_though_its_connection_has_gone(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between paramiko's look whether it is there, and the message that the channel is closed."""
    transport = SshTransport(Node(name="n0"), SshOptions(config=str(farm.ssh_config)))
    try:
        channel = transport.open(["cat"])
        with monkeypatch.context() as patch:
            patch.setattr(paramiko.packet.Packetizer, "write_all", _connection_has_gone)
            channel.close()
    finally:
        transport.close()


def test_a_server_that_only_greets_is_given_up(farm: Farm) -> None:
    with stuck_after_banner() as port:
        begun = time.monotonic()
        with pytest.raises(Unreachable, match=rf"port {port}: timed out after 1 s"):
            login(Node(name="n0", port=port), config=str(farm.ssh_config), connect_timeout_s=1)
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize(("fanout", "behind"), [(14, 0), (3, 2)])
def test_hosts_that_hang_delay_nobody_beyond_their_own_timeouts(
    farm: Farm, tmp_path: Path, host_key: Path, fanout: int, behind: int
) -> None:
    """Seven hang, in every stage of a login, and stand first; seven are well. Behind them: how many times all may hang."""
    with (
        silent_port() as silent,
        stuck_after_banner() as greeting,
        _known(farm, tmp_path, threading.Event(), host_key) as way,
    ):
        ports = [silent, greeting, silent, greeting, silent, way["port"], way["port"]]
        nodes = [
            Node.model_validate({"name": f"h{i}", "address": "127.0.0.10", "port": p}) for i, p in enumerate(ports)
        ]
        nodes += [Node(name=f"n{index}") for index in range(7)]
        took: dict[str, float] = {}
        begun = time.monotonic()

        def work(node: Node) -> None:
            config = way["config"] if node.port == way["port"] else str(farm.ssh_config)
            login(node, config=config, connect_timeout_s=1)
            took[node.name] = time.monotonic() - begun

        results = each(nodes, work, limit=fanout)
    assert [type(result) for result in results] == [Unreachable] * 7 + [type(None)] * 7
    longest_login_s = 3 + 1
    if not behind:
        assert max(took.values()) < longest_login_s  # all well before the last of the others is given up
    assert max(took.values()) < 5 + behind * longest_login_s


def test_a_proxy_command_that_will_not_end_is_ended(farm: Farm, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "stubborn"
    script.write_text(f"trap '' TERM\necho $$ > {pids}\nwhile :; do sleep 1000; done\n")
    config = farm.write_ssh_config(tmp_path / "config", ProxyCommand=f"sh {script}")
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="timed out after 1 s"):
        login(Node(name="n0"), config=str(config), connect_timeout_s=1)
    assert time.monotonic() - begun < 15
    group = int(pids.read_text())
    until(lambda: _is_gone(group), awaited="the proxy command and what it started to end")


def _is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_keepalives_go_out_on_every_connection_of_the_way(
    farm: Farm, tmp_path: Path, host_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jump host is a real sshd, which logs them; the node behind it is the stand-in."""
    monkeypatch.setattr(ssh, "KEEPALIVE_S", 1)
    requests: list[str] = []
    gate = threading.Event()
    gate.set()
    log = farm.folder / "sshd.log"
    with (
        farm.restarted(LogLevel="DEBUG1"),
        _known(farm, tmp_path, gate, host_key, requests=requests) as way,
    ):
        begin = log.stat().st_size
        node = Node.model_validate({"name": "n0", "address": "127.0.0.10", "port": way["port"]})
        transport = SshTransport(node, SshOptions.model_validate({"config": way["config"], "proxy_jump": "n1"}))
        with pytest.raises(Unreachable, match="the node starts no program"):  # the login is done, and stays
            transport.open(["true"])
        until(lambda: "keepalive@lag.net" in requests, awaited="a keepalive to the node")
        until(lambda: b"keepalive@lag.net" in log.read_bytes()[begin:], awaited="a keepalive to the jump host")
        transport.close()


def test_a_refusal_by_the_node_is_told_from_one_by_its_jump_host(farm: Farm) -> None:
    with refusing_port() as port:
        with pytest.raises(NotListening):
            login(Node(name="n0", port=port), config=str(farm.ssh_config))
        for jump, node in ((f"127.0.0.11:{port}", Node(name="n0")), ("n1", Node(name="n0", port=port))):
            with pytest.raises(Unreachable) as caught:
                login(node, config=str(farm.ssh_config), proxy_jump=jump)
            assert not isinstance(caught.value, NotListening)


def test_a_jump_host_that_cannot_connect_is_worded(farm: Farm) -> None:
    with refusing_port() as port, pytest.raises(Unreachable) as caught:
        login(Node(name="node", address="n0", port=port), config=str(farm.ssh_config), proxy_jump="n1")
    assert str(caught.value) == f"node: 127.0.0.10 port {port}: the jump host cannot connect to it (connect failed)"


def test_a_name_that_is_not_resolved_is_said_once(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("")
    with pytest.raises(Unreachable) as caught:
        login(Node(name="nope1.invalid"), config=str(config))
    assert str(caught.value) == "nope1.invalid: name not resolved"
