"""Tests of the sshd farm that other tests build on."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.grounds.ports import refusing_port, silent_port
from tests.grounds.sshd import Farm, open_farm
from tests.until import until


def ssh(farm: Farm, host: str, *command: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(config or farm.ssh_config), host, *command]
    return subprocess.run(argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)


def test_aliases_and_addresses_are_different_nodes_to_log_in_to(farm: Farm) -> None:
    addresses = farm.addresses(300)
    for host, address in (("n0", addresses[0]), ("n7", addresses[7]), (addresses[299], addresses[299])):
        done = ssh(farm, host, "echo $(id -un) $SSH_CONNECTION")
        assert done.stdout.split()[0] == farm.user, done.stderr
        assert done.stdout.split()[3] == address


def test_login_starts_in_the_temporary_home_of_the_account(farm: Farm) -> None:
    assert ssh(farm, "n0", "pwd; echo $HOME").stdout.split() == [str(farm.home)] * 2
    assert farm.is_own_account == (farm.user != pwd.getpwuid(os.geteuid()).pw_name)


def test_node_python_runs_there_and_does_not_see_the_project(farm: Farm) -> None:
    probe = "import importlib.util as u; print([n for n in ('pydantic', 'orchestrator', 'trainer') if u.find_spec(n)])"
    done = ssh(farm, "n0", f'{farm.python} -c "{probe}"')
    assert done.stdout.strip() == "['pydantic']", done.stderr


def test_detached_processes_are_listed_and_ended(farm: Farm) -> None:
    ssh(farm, "n1", "setsid sleep 1000 >/dev/null 2>&1 &")
    until(lambda: "sleep" in farm.processes().values(), awaited="the detached process")
    farm.end_processes()
    assert farm.processes() == {}


def test_a_changed_host_key_is_refused_by_the_ssh_client(farm: Farm) -> None:
    with farm.restart_with_new_host_key():
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in ssh(farm, "n0", "true").stderr
    assert ssh(farm, "n0", "true").returncode == 0


def test_an_unknown_host_key_is_refused_or_pinned_by_the_clients_setting(farm: Farm, tmp_path: Path) -> None:
    unknown = tmp_path / "known_hosts"
    strict = farm.write_ssh_config(tmp_path / "strict", known_hosts=unknown)
    assert "Host key verification failed" in ssh(farm, "n0", "true", config=strict).stderr
    accepting = farm.write_ssh_config(tmp_path / "accepting", known_hosts=unknown, StrictHostKeyChecking="accept-new")
    assert ssh(farm, "n0", "true", config=accepting).returncode == 0
    assert str(farm.port) in unknown.read_text(encoding="utf-8")


def test_sshd_options_apply_within_the_block_only(farm: Farm) -> None:
    with farm.restarted(ForceCommand="/bin/echo forced"):
        assert ssh(farm, "n0", "true").stdout == "forced\n"
    assert ssh(farm, "n0", "true").stdout == ""


def test_a_farm_that_is_down_refuses_connections_and_its_processes_continue(farm: Farm) -> None:
    ssh(farm, "n1", "setsid sleep 1000 >/dev/null 2>&1 &")
    until(lambda: list(farm.processes().values()) == ["sleep"], awaited="the detached process")
    before = farm.processes()
    with farm.down():
        assert "refused" in ssh(farm, "n1", "true").stderr
        assert farm.processes() == before


def test_dropped_connections_end_at_the_client(farm: Farm) -> None:
    with subprocess.Popen(["ssh", "-F", str(farm.ssh_config), "n0", "sleep 1000"], stderr=subprocess.PIPE) as client:
        until(lambda: "sleep" in farm.processes().values(), awaited="the remote command")
        farm.drop_connections()
        assert client.wait(timeout=10) == 255


def test_connections_opened_after_a_drop_are_kept(farm: Farm) -> None:
    """A client that reconnects at once does not keep the drop waiting."""
    script = f"while ssh -F {shlex.quote(str(farm.ssh_config))} n0 sleep 1000; [ $? = 255 ]; do :; done"
    clients = [
        subprocess.Popen(["sh", "-c", script], stderr=subprocess.DEVNULL, start_new_session=True) for _ in range(8)
    ]
    try:
        until(lambda: len(farm.processes()) == len(clients), awaited="the remote commands")
        farm.drop_connections()
        until(farm.connections, awaited="a new connection")
    finally:
        for client in clients:
            os.killpg(client.pid, signal.SIGKILL)
            client.wait()


def test_inventory_has_addresses_devices_environment_and_python(farm: Farm, tmp_path: Path) -> None:
    text = farm.inventory(tmp_path, nodes=2, devices=2, env={"A": "b"}).read_text(encoding="utf-8")
    for part in ("127.0.0.11", "devices: 2", "A: b", str(farm.python), str(farm.ssh_config)):
        assert part in text


def test_refusing_port_refuses() -> None:
    with refusing_port() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.77", port), timeout=5)


def test_silent_port_accepts_connections_and_sends_nothing() -> None:
    with (
        silent_port() as port,
        socket.create_connection(("127.0.0.77", port), timeout=0.3) as connection,
        pytest.raises(TimeoutError),
    ):
        connection.recv(1)


@pytest.mark.processes
@pytest.mark.ssh
@pytest.mark.parametrize("own_account", [None, False])
def test_teardown_leaves_no_process_folder_or_account(own_account: bool | None) -> None:
    with open_farm(own_account=own_account) as farm:
        assert ssh(farm, "n0", "cd; pwd; setsid sleep 1000 >/dev/null 2>&1 &").returncode == 0
        pids = until(farm.processes, awaited="the detached process")
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not farm.folder.exists()
    assert not farm.is_own_account or farm.user not in {entry.pw_name for entry in pwd.getpwall()}


@pytest.mark.processes
@pytest.mark.ssh
def test_a_farm_as_the_current_account_still_has_its_own_home() -> None:
    with open_farm(own_account=False) as farm:
        assert ssh(farm, "n0", "pwd; echo $HOME").stdout.split() == [str(farm.home)] * 2
        listing = subprocess.run(
            ["sftp", "-F", str(farm.ssh_config), "-b", "-", "n0"],
            input="pwd\n",
            check=True,
            capture_output=True,
            text=True,
        )
        assert str(farm.home) in listing.stdout
