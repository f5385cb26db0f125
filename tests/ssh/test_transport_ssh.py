"""Both clients of ssh, paramiko and the program ssh, tested with a real sshd: every kind of login and of failure."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import LoginRefused, NodeError, Unreachable
from orchestrator.fanout import map_parallel, successes
from orchestrator.inventory.model import Node, SshOptions
from orchestrator.transports.base import ChannelClosed, ChannelReader
from orchestrator.transports.ssh.transport import KEEPALIVE_S, SshTransport, _fabric_config
from tests.grounds.components import program, unavailable
from tests.grounds.ports import refusing_port, silent_port
from tests.grounds.ssh_agent import open_agent
from tests.grounds.ssh_clients import BOTH_CLIENTS, Client, by_program
from tests.grounds.sshd import Farm
from tests.until import until


def connect(farm: Farm, address: str = "n0", *, config: Path | None = None, **more: object) -> Endpoint:
    """Connect to a node; `more` are fields of the node or of the inventory's `ssh`."""
    return connect_by(SshTransport, farm, address, config=config, **more)


def connect_by(
    client: Client,
    farm: Farm,
    address: str = "n0",
    *,
    config: Path | None = None,
    **more: object,
) -> Endpoint:
    """Connect by one of the clients."""
    node, options = _node_and_options(farm, address, config=config, **more)
    return Endpoint.connect(client(node, options), node.python)


def _node_and_options(
    farm: Farm, address: str = "n0", *, config: Path | None = None, **more: object
) -> tuple[Node, SshOptions]:
    ssh = {key: more.pop(key) for key in ("proxy_jump", "host_keys", "connect_timeout_s") if key in more}
    options = SshOptions.model_validate({"config": str(config or farm.ssh_config), **ssh})
    return Node.model_validate({"name": "node", "address": address, "python": str(farm.python), **more}), options


def node_error(work: Callable[[], Endpoint]) -> NodeError:
    with pytest.raises(NodeError) as caught:
        work()
    assert caught.value.node == "node"
    return caught.value


@BOTH_CLIENTS
def test_an_alias_of_the_configuration_leads_to_the_node(farm: Farm, client: Client) -> None:
    with connect_by(client, farm) as endpoint:
        assert endpoint.facts.user == farm.user
        assert endpoint.facts.home == str(farm.home)
        assert not endpoint.prepare("~/work", "abc")


def test_login_needs_no_configuration_entry_for_the_node(farm: Farm, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"IdentityFile {farm.client_key}\nIdentitiesOnly yes\nUserKnownHostsFile {farm.known_hosts}\n")
    address = farm.addresses(300)[299]
    with connect(farm, address, config=config, user=farm.user, port=farm.port) as endpoint:
        assert endpoint.facts.user == farm.user


def test_an_agent_outlives_the_connection(farm: Farm) -> None:
    record = 'echo \'{"pid": \'$$\', "start_time": 0, "pgid": 0, "boot_id": "", "host_id": "", "hostname": "",'
    record += (
        ' "python": "", "node": "", "node_rank": 0, "ranks": [], "world_size": 1, "rendezvous": "", "started": 0}\''
    )
    with connect(farm) as endpoint:
        folder = f"{farm.home}/agent-{os.getpid()}"
        endpoint.put_files(
            folder, [("node.sh", f"{record} > agent.new; mv agent.new agent.json; exec sleep 1000", 0o600)]
        )
        pid = endpoint.start(["/bin/sh", f"{folder}/node.sh"], folder).pid
    farm.drop_connections()
    until(lambda: farm.processes() == {pid: "sleep"}, awaited="the agent alone, as sleep")


@BOTH_CLIENTS
def test_megabytes_arrive_as_they_are(farm: Farm, client: Client) -> None:
    content = os.urandom(5_000_000)
    with connect_by(client, farm) as endpoint:
        folder = f"{farm.home}/data-{os.getpid()}/n0"
        endpoint.put_files(folder, [("rank-0.out", content, 0o600)])
        chunks = endpoint.read(os.path.dirname(folder), {"n0/rank-0.out": (0, len(content))}, max_bytes=10_000_000)  # noqa: PTH120  the node's path
    assert [chunk.data for chunk in chunks] == [content]


def test_a_noisy_stderr_does_not_block_stdout(farm: Farm) -> None:
    node = Node(name="node", address="n0")
    transport = SshTransport(node, SshOptions(config=str(farm.ssh_config)))
    channel = transport.open(["sh", "-c", "head -c 5000000 /dev/zero >&2; echo done"])
    assert ChannelReader(channel).read_exactly(5, timeout_s=20) == b"done\n"
    channel.close()
    transport.close()


@BOTH_CLIENTS
@pytest.mark.parametrize("jump", ["n1", "127.0.0.12,n2"])
def test_jump_hosts_are_used(farm: Farm, jump: str, client: Client) -> None:
    with connect_by(client, farm, proxy_jump=jump) as endpoint:
        assert endpoint.facts.user == farm.user


@BOTH_CLIENTS
def test_a_proxy_command_is_used(farm: Farm, tmp_path: Path, client: Client) -> None:
    config = farm.write_ssh_config(tmp_path / "config", ProxyCommand=f"ssh -F {farm.ssh_config} -W %h:%p n3")
    with connect_by(client, farm, config=config) as endpoint:
        assert endpoint.facts.user == farm.user


def test_an_unknown_host_key_is_refused(farm: Farm, tmp_path: Path) -> None:
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=tmp_path / "none")
    error = node_error(lambda: connect(farm, config=config))
    assert "is unknown: ssh-ed25519 SHA256:" in str(error)
    assert "accept-new" in error.hint
    assert not (tmp_path / "none").exists()


@BOTH_CLIENTS
def test_the_keys_of_jump_hosts_are_verified_too(farm: Farm, tmp_path: Path, client: Client) -> None:
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=tmp_path / "one")
    key = farm.known_hosts.read_text().split(maxsplit=1)[1]
    (tmp_path / "one").write_text(f"[{farm.addresses(1)[0]}]:{farm.port} {key}")
    error = node_error(lambda: connect_by(client, farm, config=config, proxy_jump="n1"))
    assert isinstance(error, LoginRefused)
    assert re.search(rf"host key (of|is known for) \[{farm.addresses(2)[1]}\]:{farm.port}", str(error))


@BOTH_CLIENTS
def test_accept_new_pins_an_unknown_key_once_and_refuses_another_later(
    farm: Farm, tmp_path: Path, client: Client
) -> None:
    pins = tmp_path / "pins"
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=pins)

    def work(_: int) -> None:
        connect_by(client, farm, config=config, host_keys="accept-new").close()

    successes(map_parallel(range(6), work, limit=6))
    assert len(set(pins.read_text().splitlines())) == 1  # processes of ssh may write the same line at the same time
    assert pins.stat().st_mode & 0o022 == 0
    connect_by(client, farm, config=config, host_keys="strict").close()
    with farm.restart_with_new_host_key():
        error = node_error(lambda: connect_by(client, farm, config=config, host_keys="accept-new"))
    assert "has changed" in str(error)
    assert f"{pins} line 1" in str(error)
    assert len(pins.read_text().splitlines()) == 1


def test_a_changed_host_key_is_refused_without_advice_to_disable_checks(farm: Farm) -> None:
    with farm.restart_with_new_host_key():
        error = node_error(lambda: connect(farm))
    assert "has changed: it is ssh-ed25519 SHA256:" in str(error)
    assert f"{farm.known_hosts} line 1" in error.hint
    assert "host_keys" not in error.hint + str(error)


def test_another_kind_of_host_key_counts_as_changed(farm: Farm, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(f"[{farm.addresses(1)[0]}]:{farm.port} ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY=\n")
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=known)
    assert "has changed" in str(node_error(lambda: connect(farm, config=config, host_keys="accept-new")))


def test_a_revoked_host_key_is_refused(farm: Farm, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(farm.known_hosts.read_text() + "@revoked " + farm.known_hosts.read_text())
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=known)
    assert "is revoked" in str(node_error(lambda: connect(farm, config=config)))


def test_a_host_key_alias_selects_the_known_key(farm: Farm, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text("farm-key " + farm.known_hosts.read_text().split(maxsplit=1)[1])
    config = farm.write_ssh_config(tmp_path / "config", known_hosts=known, HostKeyAlias="farm-key")
    connect(farm, config=config).close()


def test_a_wrong_key_is_refused_at_once_with_a_command_to_try(farm: Farm, tmp_path: Path) -> None:
    shutil.copy(farm.folder / "host_key", tmp_path / "key")
    config = farm.write_ssh_config(tmp_path / "config", IdentityFile=str(tmp_path / "key"))
    begun = time.monotonic()
    error = node_error(lambda: connect(farm, config=config, connect_timeout_s=60))
    assert "no key was accepted (1 refused)" in str(error)
    assert "ssh" in error.hint
    assert "n0 true" in error.hint
    assert time.monotonic() - begun < 40


def test_the_agent_of_a_configuration_that_ssh_evaluates_is_used(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    config = farm.write_ssh_config(
        tmp_path / "config", IdentitiesOnly="no", IdentityFile="none", IdentityAgent=str(tmp_path / "agent"),
        CanonicalizeHostname="yes\n  Match final all",
    )  # fmt: skip
    with open_agent(tmp_path / "agent"):
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        subprocess.run([program("ssh-add"), "-q", str(farm.client_key)], check=True)
        monkeypatch.delenv("SSH_AUTH_SOCK")
        connect(farm, config=config).close()


def test_a_key_that_others_can_read_is_not_used(farm: Farm, tmp_path: Path) -> None:
    shutil.copy(farm.client_key, tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    config = farm.write_ssh_config(tmp_path / "config", IdentityFile=str(tmp_path / "key"))
    error = node_error(lambda: connect(farm, config=config))
    assert f"{tmp_path}/key: permissions 0644 are too open: chmod 600 {tmp_path}/key" in str(error)


def test_a_missing_key_and_a_broken_one_have_different_messages(farm: Farm, tmp_path: Path) -> None:
    config = farm.write_ssh_config(tmp_path / "missing", IdentityFile=str(tmp_path / "none"))
    assert "no key was accepted (there is none)" in str(node_error(lambda: connect(farm, config=config)))
    (tmp_path / "broken").write_text("no key")
    (tmp_path / "broken").chmod(0o600)
    config = farm.write_ssh_config(tmp_path / "config", IdentityFile=str(tmp_path / "broken"))
    assert f"{tmp_path}/broken: " in str(node_error(lambda: connect(farm, config=config)))


@BOTH_CLIENTS
def test_a_refused_port_a_silent_one_and_an_unknown_name_have_different_messages(farm: Farm, client: Client) -> None:
    with refusing_port() as port:
        assert str(node_error(lambda: connect_by(client, farm, port=port))).endswith(f"port {port}: connection refused")
    with silent_port() as port:
        begun = time.monotonic()
        error = node_error(lambda: connect_by(client, farm, port=port, connect_timeout_s=1))
        assert str(error).endswith(f"port {port}: timed out after 1 s")
        assert 1 <= time.monotonic() - begun < 60  # the kernel gives up after 127 s
    error = node_error(lambda: connect_by(client, farm, "no-such-host.invalid"))
    assert str(error) == "node: no-such-host.invalid: name not resolved"
    assert isinstance(error, Unreachable)


def test_a_black_hole_behind_a_jump_host_times_out_too(farm: Farm) -> None:
    with silent_port() as port:
        begun = time.monotonic()
        error = node_error(lambda: connect(farm, port=port, proxy_jump="n1", connect_timeout_s=1))
    assert "timed out after 1 s" in str(error)
    assert time.monotonic() - begun < 60


def test_a_node_without_python_is_named(farm: Farm) -> None:
    error = node_error(lambda: connect(farm, python="/opt/conda/bin/python3"))
    assert error.reason == "no Python: /opt/conda/bin/python3 not found"
    assert "python:" in error.hint


def test_a_python_in_the_home_folder_is_found(farm: Farm) -> None:
    with connect(farm) as endpoint:
        endpoint.put_files("~/my env", [("python", f'#!/bin/sh\nexec {farm.python} "$@"\n', 0o700)])
    with connect(farm, python="~/my env/python") as endpoint:
        assert endpoint.facts.user == farm.user


def test_output_of_a_startup_file_is_skipped(farm: Farm) -> None:
    with (
        farm.restarted(
            ForceCommand='echo Welcome to the cluster; printf junk; echo oops >&2; eval "$SSH_ORIGINAL_COMMAND"'
        ),
        connect(farm) as endpoint,
    ):
        assert endpoint.facts.user == farm.user


def test_output_of_a_forced_command_that_runs_nothing_is_quoted(farm: Farm) -> None:
    with farm.restarted(ForceCommand="echo This account is closed; exit 1"):
        error = node_error(lambda: connect(farm))
    assert "exit status 1: This account is closed" in str(error)
    assert "python:" not in error.hint


@pytest.mark.parametrize(
    ("startup", "reason", "hint"),
    [
        (
            "read line",
            "python3 received only a part of the program that orch sends: .* read standard input, such as a start-up file",
            "-t 0",
        ),
        ("exec sh", "^a shell read the program that orch sends to .*python3: .* such as a start-up file", "-t 0"),
        ("set -e; nosuch", "exit status 127: .*/.bashrc: line 1: nosuch: command not found$", "n0 .*--version"),
        ("exit 3", "did not start, exit status 3: it printed nothing$", "n0 .*--version"),
    ],
)
def test_a_startup_file_that_keeps_python_from_starting_is_named(
    farm: Farm, startup: str, reason: str, hint: str
) -> None:
    (farm.home / ".bashrc").write_text(f"{startup}\n")
    try:
        error = node_error(lambda: connect(farm))
    finally:
        (farm.home / ".bashrc").unlink()
    assert re.search(reason, error.reason)
    assert re.search(hint, error.hint)


@pytest.mark.parametrize(
    ("script", "mode", "reason"),
    [
        ("#!/bin/sh\nexec /opt/gone/python3", 0o755, "did not start, exit status 127: .*/opt/gone/python3: not found$"),
        ("#!/opt/gone/python3", 0o755, "did not start, exit status 12[67]: .*"),
        ("#!/bin/bash\nmodule load x\nexit 127", 0o755, "did not start, .*line 2: module: command not found$"),
        ("", 0o644, "^no Python: .* cannot be run$"),
    ],
)
def test_only_a_python_that_is_absent_is_not_found(farm: Farm, script: str, mode: int, reason: str) -> None:
    python = farm.home / "bin-python"
    python.write_text(f"{script}\n")
    python.chmod(mode)
    assert re.search(reason, node_error(lambda: connect(farm, python=str(python))).reason)
    python.unlink()
    assert node_error(lambda: connect(farm, python=str(python))).reason == f"no Python: {python} not found"


def test_a_python_in_a_folder_that_the_user_may_not_enter_is_named_with_the_folder(farm: Farm) -> None:
    """Such as an environment whose interpreter is below the home of another user."""
    if not farm.is_own_account:
        unavailable("the farm has no separate account, which may not enter a folder of this one: run as root")
    home, env = farm.home / "home-of-another", farm.home / "env"
    home.mkdir(mode=0o700)
    (home / "python3").touch(mode=0o755)
    env.mkdir()
    (env / "python").symlink_to("python3")
    (env / "python3").symlink_to(home / "python3")
    for python in (home / "bin" / "python3", env / "python"):
        reason = node_error(lambda: connect(farm, python=str(python))).reason  # called at once
        assert reason == f"no Python: {python} is in {home}, which this user may not enter"


@BOTH_CLIENTS
def test_a_server_that_refuses_sessions_is_named(farm: Farm, client: Client) -> None:
    with farm.restarted(MaxSessions="0"):
        assert "MaxSessions" in str(node_error(lambda: connect_by(client, farm)))


def test_an_unwritable_working_folder_is_named(farm: Farm) -> None:
    with connect(farm) as endpoint:
        if endpoint.facts.user == "root":
            unavailable("root can write everywhere")
        with pytest.raises(NodeError, match="/usr/orch: Permission denied"):
            endpoint.prepare("/usr/orch", "abc")


@pytest.mark.parametrize(("client", "logins"), [(SshTransport, 24), (by_program, 8)])
def test_more_logins_than_maxstartups_allows_succeed_after_retries(farm: Farm, client: Client, logins: int) -> None:
    with farm.restarted(MaxStartups="3:50:6"):
        endpoints = successes(
            map_parallel(range(logins), lambda _: connect_by(client, farm, connect_timeout_s=30), limit=logins)
        )
        for endpoint in endpoints:
            endpoint.close()


def test_exit_status_255_of_a_program_is_not_a_lost_connection(farm: Farm) -> None:
    """It is also that of ssh if it fails itself."""
    node, options = _node_and_options(farm)
    transport = by_program(node, options)
    with contextlib.closing(transport):
        channel = transport.open(["sh", "-c", "exit 255"])
        with pytest.raises(ChannelClosed) as caught:
            channel.read_some(timeout_s=10)
    assert caught.value.exit_status == 255


@BOTH_CLIENTS
def test_a_lost_connection_is_unreachable(farm: Farm, client: Client) -> None:
    with connect_by(client, farm) as endpoint:
        farm.drop_connections()
        with pytest.raises(Unreachable):
            endpoint.observe("/nope", None)


def test_thread_of_an_idle_connection_sleeps_for_seconds(farm: Farm) -> None:
    """By default paramiko's thread wakes ten times per second: with a thousand connections a fifth of a core."""
    transport = SshTransport(*_node_and_options(farm))
    with Endpoint.connect(transport, str(farm.python)):
        assert transport._connections[0].transport.sock.gettimeout() == KEEPALIVE_S / 3


@BOTH_CLIENTS
def test_a_closed_connection_leaves_no_thread_and_no_process(farm: Farm, client: Client) -> None:
    before = threading.active_count()
    connect_by(client, farm, proxy_jump="n1").close()
    node_error(lambda: connect_by(client, farm, python="/nope"))
    until(lambda: threading.active_count() <= before, awaited="the threads of the connections to end")
    until(lambda: not farm.processes(), awaited="the endpoint to end")


def test_a_closed_transport_can_connect_to_the_node(farm: Farm) -> None:
    """As after a lost connection to the login node, whose two endpoints share one transport."""
    transport = SshTransport(*_node_and_options(farm))
    for _ in range(2):
        with Endpoint.connect(transport, str(farm.python)):
            pass


def test_loss_of_the_jump_host_raises_in_no_thread(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paramiko's thread of the inner connection sends its last message over the outer one, which is closed."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    transport = SshTransport(*_node_and_options(farm, proxy_jump="n1"))
    with Endpoint.connect(transport, str(farm.python)):
        outer, inner = (connection.transport for connection in transport._connections)
        # the connection is cut, and its own thread has not noticed
        monkeypatch.setattr(outer, "_send_user_message", _lost)
        inner.sock._handle_eof(None)
        until(lambda: not inner.is_alive(), awaited="the thread to end")
        monkeypatch.setattr(outer, "_send_user_message", lambda _message: None)
    assert not raised


def _lost(_message: object) -> None:
    raise EOFError


@pytest.mark.parametrize("config", ["none", "broken"])
def test_a_bad_configuration_is_named(farm: Farm, tmp_path: Path, config: str) -> None:
    (tmp_path / "broken").write_text("Host\n=\n")
    assert "ssh configuration: " in str(node_error(lambda: connect(farm, config=tmp_path / config)))


def test_connections_of_many_threads_share_no_fabric_config() -> None:
    """Threads that share one may read it half loaded, and then fail with an AttributeError."""
    assert _fabric_config() is not _fabric_config()
