"""Tests of the hosts that other tests build on."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grounds.hosts import PORT, Hosts, open_hosts, require_namespaces
from tests.grounds.keeper import kill, network_name
from tests.grounds.machines import Machine
from tests.grounds.ssh_files import known_hosts_line
from tests.until import until

_CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1.5) as connection:
    print("connected", flush=True)
    print(connection.recv(4).decode())
"""
_LISTENER = """
import select, socket
listener = socket.socket(type=socket.SOCK_DGRAM)
listener.bind(("", 99))
print("listening", flush=True)
print("received" if select.select([listener], [], [], 1.5)[0] else "lost")
"""
_SENDER = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(b'hi', (sys.argv[1], 99))"
_OWNER = """
import sys
from tests.grounds.hosts import open_hosts
from tests.until import until
with open_hosts(2) as hosts:
    hosts.ssh(hosts[0], "setsid sleep 1000 >/dev/null 2>&1 &")
    hosts.controller.do("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
    machines = (hosts.controller, *hosts.hosts)
    def processes():
        return [pid for machine in machines for pid in machine.all_processes()]
    # the controller's own, two per host, two sleepers; sshd's process of the login ends a moment later
    until(lambda: len(processes()) == 7, awaited=lambda: f"seven processes, not {processes()}")
    print(hosts.folder, hosts.user, *processes(), flush=True)
    sys.stdin.read()
"""


def connect_to_sshd(source: Machine, target: Machine) -> str:
    """Connect from `source` to the sshd of `target`; returns `connected`, the banner's first bytes, or the error's last words."""
    argv = [*source.enter(), sys.executable, "-c", _CONNECT, target.address, str(PORT)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=30)
    return " ".join(done.stdout.split() + done.stderr.split()[-2:])


def send_datagram(source: Machine, target: Machine) -> str:
    """Send one datagram, which unlike a connection needs no answer; returns `received` or `lost`."""
    argv = [*target.enter(), sys.executable, "-c", _LISTENER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        source.do(sys.executable, "-c", _SENDER, target.address)
        return listener.communicate()[0].strip()


def test_each_host_has_its_own_name_address_processes_and_files(hosts: Hosts) -> None:
    for host in hosts.hosts:
        done = hosts.ssh(host, "hostname; echo $SSH_CONNECTION; id -un; pwd; touch mine-$(hostname); ls; ps -e")
        name, connection, user, home, file, *processes = done.stdout.splitlines()
        assert (name, user, home, file) == (host.name, hosts.user, str(hosts.home), f"mine-{host.name}"), done.stderr
        assert connection.split()[::2] == [hosts.controller.address, host.address]
        assert len(processes) < 10
        assert host.path(hosts.home / file).exists()
    assert len({hosts.ssh(host, "cat /proc/sys/kernel/random/boot_id").stdout for host in hosts.hosts}) == 3


def test_hosts_resolve_each_others_names_and_are_not_visible_outside(hosts: Hosts) -> None:
    assert hosts[0].run("getent", "hosts", "h2").stdout.split() == [hosts[2].address, "h2"]
    assert connect_to_sshd(hosts[0], hosts[2]) == "connected SSH-"
    assert {name for _, name in socket.if_nameindex()}.isdisjoint({"bridge", "ctl", "h0"})
    assert socket.gethostname() not in {"ctl", "h0"}
    assert str(hosts.folder) not in Path("/proc/self/mounts").read_text(encoding="utf-8")


def test_logins_require_the_host_key_in_known_hosts(hosts: Hosts, tmp_path: Path) -> None:
    assert hosts.ssh(hosts[1], "echo in").stdout == "in\n"
    wrong_known_hosts = tmp_path / "known_hosts"
    wrong_known_hosts.write_text(known_hosts_line(hosts[0].address, hosts[1].host_key), encoding="utf-8")
    refused = hosts.ssh(hosts[0], "echo in", options=["-o", f"UserKnownHostsFile={wrong_known_hosts}"])
    assert "HOST IDENTIFICATION HAS CHANGED" in refused.stderr
    assert refused.stdout == ""


def test_commands_run_as_the_account_in_its_home(hosts: Hosts) -> None:
    done = hosts[1].run("sh", "-c", "id -un; pwd; hostname; echo a > b")
    assert done.stdout.split() == [hosts.user, str(hosts.home), "h1"], done.stderr
    assert hosts[1].path(hosts.home / "b").read_text() == "a\n"
    assert not hosts[0].path(hosts.home / "b").exists()


def test_a_link_that_is_down_drops_packets_both_ways_until_it_is_up(hosts: Hosts) -> None:
    cut, connected = hosts[1], hosts[0]
    cut.link(up=False)
    for source, target in ((hosts.controller, cut), (connected, cut), (cut, connected)):
        assert connect_to_sshd(source, target).endswith("timed out")
    assert connect_to_sshd(hosts.controller, connected) == "connected SSH-"
    cut.link(up=True)
    for source, target in ((hosts.controller, cut), (connected, cut), (cut, connected)):
        assert connect_to_sshd(source, target) == "connected SSH-"


def test_an_open_connection_survives_a_link_that_was_down(hosts: Hosts) -> None:
    argv = [*hosts.controller.enter(), "ssh", "-F", str(hosts.ssh_config), "h0", "cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write("before\n")
        client.stdin.flush()
        assert client.stdout.readline() == "before\n"
        hosts[0].link(up=False)
        client.stdin.write("during\n")
        client.stdin.flush()
        assert connect_to_sshd(hosts.controller, hosts[0]).endswith("timed out")
        hosts[0].link(up=True)
        assert client.stdout.readline() == "during\n"


def test_hosts_still_reach_each_other_when_the_controller_is_cut_off(hosts: Hosts) -> None:
    hosts.controller.link(up=False)
    assert connect_to_sshd(hosts.controller, hosts[0]).endswith("timed out")
    assert connect_to_sshd(hosts[0], hosts[1]) == "connected SSH-"


def test_a_one_way_block_loses_one_direction_of_one_pair(hosts: Hosts) -> None:
    hosts.block(hosts[0], hosts[1])
    assert send_datagram(hosts[0], hosts[1]) == "lost"
    assert send_datagram(hosts[1], hosts[0]) == "received"
    assert send_datagram(hosts[2], hosts[1]) == "received"
    for source, target in ((hosts[0], hosts[1]), (hosts[1], hosts[0])):
        assert connect_to_sshd(source, target).endswith("timed out")
    hosts.unblock(hosts[0], hosts[1])
    assert connect_to_sshd(hosts[0], hosts[1]) == "connected SSH-"


def test_a_frozen_host_accepts_connections_and_sends_nothing_until_it_thaws(hosts: Hosts) -> None:
    hosts.ssh(hosts[2], "setsid sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 &")
    until(lambda: list(hosts[2].processes().values()) == ["sleep"] * 2, awaited="the two alone")
    stopped = next(iter(hosts[2].processes()))
    kill(stopped, signal.SIGSTOP)
    until(lambda: "T (stopped)" in Path(f"/proc/{stopped}/status").read_text("utf-8"), awaited="it to stop")
    hosts[2].freeze()
    assert connect_to_sshd(hosts.controller, hosts[2]) == "connected timed out"
    hosts[2].thaw()
    assert connect_to_sshd(hosts.controller, hosts[2]) == "connected SSH-"
    states = hosts[2].run("ps", "-C", "sleep", "-o", "state=").stdout.split()
    assert sorted(states) == ["S", "T"], "a process that was stopped before stays stopped"


def test_a_killed_host_is_silent_and_reboots_with_its_files_and_a_new_boot_id(hosts: Hosts) -> None:
    read_boot_id = "cat /proc/sys/kernel/random/boot_id"
    before = hosts.ssh(hosts[0], f"setsid sleep 1000 >/dev/null 2>&1 & echo kept > file; {read_boot_id}").stdout
    pids = hosts[0].all_processes()
    argv = [*hosts.controller.enter(), "ssh", "-F", str(hosts.ssh_config), "h0", "cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        until(lambda: "cat" in hosts[0].processes().values(), awaited="the client's command")
        hosts[0].kill()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert hosts[0].processes() == {}
        assert connect_to_sshd(hosts.controller, hosts[0]).endswith("timed out")
        assert client.poll() is None, "no FIN or RST reached it"
        assert hosts[0].path(hosts.home / "file").read_text() == "kept\n"
        hosts[0].revive()
        client.kill()
    after = hosts.ssh(hosts[0], f"cat file; {read_boot_id}").stdout.split()
    assert after[0] == "kept"
    assert after[1] != before.strip()
    assert hosts[0].processes() == {}


def test_heal_undoes_every_fault_and_removes_processes_and_files(hosts: Hosts) -> None:
    hosts.ssh(hosts[1], "mkdir folder; touch file folder/file; setsid sleep 1000 >/dev/null 2>&1 &")
    hosts.controller.do("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
    hosts[0].freeze()
    hosts[0].kill()
    hosts[1].freeze()
    hosts[1].link(up=False)
    hosts.block(hosts[2], hosts[1])
    hosts.block(hosts.controller, hosts[2])
    hosts.heal()
    for source in (hosts.controller, *hosts.hosts):
        assert {connect_to_sshd(source, target) for target in hosts.hosts} == {"connected SSH-"}
    assert [host.processes() for host in hosts.hosts] == [{}, {}, {}]
    assert list(hosts.controller.all_processes().values()) == ["sleep"]
    assert hosts[1].run("ls").stdout == ""


def test_heal_revives_a_host_whose_first_process_was_killed(hosts: Hosts) -> None:
    kill(hosts[0].pid)
    until(lambda: not hosts[0].is_up, awaited="the host to be dead")
    hosts.heal()
    assert connect_to_sshd(hosts.controller, hosts[0]) == "connected SSH-"


@pytest.mark.processes
def test_closed_hosts_leave_nothing() -> None:
    with open_hosts(3) as hosts:
        hosts.ssh(hosts[0], "setsid sleep 1000 >/dev/null 2>&1 &")
        hosts.controller.do("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
        pids = [pid for machine in (hosts.controller, *hosts.hosts) for pid in machine.all_processes()]
        assert len({network_name(pid) for pid in pids}) == 4
    _assert_gone(hosts.folder, hosts.user, pids)


@pytest.mark.processes
def test_killed_tests_leave_no_part_of_their_hosts() -> None:
    require_namespaces()
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        folder, user, *pids = owner.stdout.readline().split()
        assert len(pids) == 7, "the controller's own, two per host, two sleepers"
        os.kill(owner.pid, signal.SIGKILL)
    until(lambda: not Path(folder).exists(), awaited="the folder to be removed")
    _assert_gone(Path(folder), user, [int(pid) for pid in pids])


def _assert_gone(folder: Path, user: str, pids: list[int]) -> None:
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), awaited="the killed processes to be reaped")
    assert not folder.exists()
    assert user not in {entry.pw_name for entry in pwd.getpwall()}
    assert str(folder) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def test_only_root_can_make_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="only root"), open_hosts():
        pass
