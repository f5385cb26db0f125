"""The hosts do what other tests build on."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from tests.grounds.hosts import Host, Hosts, open_hosts
from tests.until import until


def _ssh(hosts: Hosts, host: Host, *command: str) -> subprocess.CompletedProcess[str]:
    """Log in from the controller."""
    options = ["-F", str(hosts.ssh_config), "-o", "ConnectTimeout=2", "-o", "BatchMode=yes"]
    argv = [*hosts.controller.enter("net"), "ssh", *options, host.name, *command]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=20)


def test_each_host_has_its_own_name_network_processes_and_files(hosts: Hosts) -> None:
    assert [_ssh(hosts, host, "hostname").stdout.strip() for host in hosts.hosts] == ["h0", "h1", "h2"]
    assert _ssh(hosts, hosts[0], "touch", "mine").returncode == 0
    assert hosts[0].path(hosts.account.home / "mine").exists()
    assert not hosts[1].path(hosts.account.home / "mine").exists()
    assert len(_ssh(hosts, hosts[1], "ls", "-d", "/proc/[0-9]*").stdout.split()) < 12
    assert socket.gethostname() not in ("h0", "h1", "h2")
    assert not list(Path("/sys/class/net").glob("h0"))


def test_pulled_cable_is_silence_until_it_is_plugged_in_again(hosts: Hosts) -> None:
    hosts[1].link(up=False)
    assert "timed out" in _ssh(hosts, hosts[1], "true").stderr.lower()
    assert _ssh(hosts, hosts[2], "true").returncode == 0
    hosts[1].link(up=True)
    until(lambda: _ssh(hosts, hosts[1], "true").returncode == 0, what="the host to answer")


def test_one_way_cut_loses_one_direction(hosts: Hosts) -> None:
    hosts[1].drop_from(hosts[0])
    assert "timed out" in _ssh_between(hosts[0], hosts[1])
    assert "SSH" in _ssh_between(hosts[2], hosts[1])
    hosts[0].send_to_all()
    assert "SSH" in _ssh_between(hosts[0], hosts[1])


def _ssh_between(one: Host, other: Host) -> str:
    script = f"timeout 2 bash -c 'read -r -n 4 word < /dev/tcp/{other.address}/22; echo $word' || echo timed out"
    return one.run("bash", "-c", script)


def test_frozen_host_takes_connections_and_says_nothing(hosts: Hosts) -> None:
    hosts[0].freeze()
    assert "timed out" in _ssh(hosts, hosts[0], "true").stderr.lower()
    hosts[0].thaw()
    assert _ssh(hosts, hosts[0], "true").returncode == 0


def test_dead_host_is_silent_and_comes_back_empty(hosts: Hosts) -> None:
    _ssh(hosts, hosts[2], "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &")
    until(lambda: "sleep" in hosts[2].processes().values(), what="a process")
    hosts[2].die()
    assert "timed out" in _ssh(hosts, hosts[2], "true").stderr.lower()
    hosts[2].boot()
    until(lambda: _ssh(hosts, hosts[2], "true").returncode == 0, what="the host to answer")
    assert hosts[2].processes() == {}


def test_teardown_leaves_no_process_no_folder_and_no_account() -> None:
    begun = time.monotonic()
    with open_hosts(2) as hosts:
        up_s = time.monotonic() - begun
        _ssh(hosts, hosts[0], "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &")
        pids = [pid for host in hosts.hosts for pid in (host.pid, *host.processes())]
        folder, user = hosts.folder, hosts.account.user
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not folder.exists()
    assert user not in Path("/etc/passwd").read_text("utf-8")
    assert up_s < 60
