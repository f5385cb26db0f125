"""The rendezvous: an address that other nodes can reach, and a reserved port."""

from __future__ import annotations

import errno
import io
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from orchestrator.node.rendezvous import choose_address, hold_port, read_record
from orchestrator.node.system.machine import host_id
from tests.grounds import components
from tests.node.agent.test_agent_ground import AGENT, PYTHONS, Ground, ground
from tests.until import until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ground"]

NO_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class Reservation:
    def __init__(self, python: str, *candidates: str) -> None:
        argv = [python, str(AGENT), "rendezvous"]
        for candidate in candidates:
            argv += ["--address", candidate]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.record = self.process.stdout.readline().rstrip("\n")
        self.address, port, self.host_id = self.record.split()
        self.port = int(port)


@pytest.fixture(params=PYTHONS)
def reservation(request: pytest.FixtureRequest) -> Iterator[Reservation]:
    reservation = Reservation(request.param, "127.0.0.1")
    with reservation.process:
        yield reservation
        if reservation.process.poll() is None:
            reservation.process.terminate()


@pytest.fixture(autouse=True)
def no_interface_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NO_NAMES:
        monkeypatch.delenv(name, raising=False)


def bind(family: int, address: str, port: int, *, reuse: bool) -> socket.socket:
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        taken.bind((address, port))
    except OSError:
        taken.close()
        raise
    return taken


FAMILIES = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")]  # noqa: S104


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_a_held_port_refuses_others_and_lets_the_store_listen(
    reservation: Reservation, family: int, address: str
) -> None:
    with pytest.raises(OSError, match="already in use") as refusal:
        bind(family, address, reservation.port, reuse=False)
    assert refusal.value.errno == errno.EADDRINUSE
    with bind(family, address, reservation.port, reuse=True) as store:
        store.listen()
        with socket.create_connection(("127.0.0.1", reservation.port), timeout=5):
            store.accept()[0].close()


def test_port_in_time_wait_can_be_held_and_listened_on() -> None:
    """Rank 0 of an attempt that has just ended closed its connections first, so the kernel keeps them for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as rank:
            store.accept()[0].close()
            assert rank.recv(1) == b""
    with pytest.raises(OSError, match="already in use"):
        bind(socket.AF_INET, "127.0.0.1", port, reuse=False)
    with hold_port(port), bind(socket.AF_INET, "127.0.0.1", port, reuse=True) as next_store:
        next_store.listen()


def test_nothing_listens_on_a_held_port(reservation: Reservation) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reservation.port), timeout=5)


def test_reservation_ends_with_its_input(reservation: Reservation) -> None:
    assert reservation.process.stdin is not None
    reservation.process.stdin.close()
    assert reservation.process.wait(timeout=10) == 0
    bind(socket.AF_INET, "127.0.0.1", reservation.port, reuse=False).close()


def test_reservation_ends_with_sigterm(reservation: Reservation) -> None:
    reservation.process.send_signal(signal.SIGTERM)
    assert reservation.process.wait(timeout=10) == 0


def test_record_names_the_host(reservation: Reservation) -> None:
    assert reservation.host_id == host_id()
    assert reservation.address == "127.0.0.1"


# ---- the address


def interface_addresses() -> list[tuple[str, str]]:
    """Name and IPv4 address of every interface but the loopback, as `ip` prints them."""
    argv = [components.program("ip"), "-o", "-4", "addr", "show", "up", "scope", "global"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    if not lines:
        components.unavailable("no interface with a routable IPv4 address on this machine")
    return [(words[1], words[3].partition("/")[0]) for words in map(str.split, lines)]


@pytest.mark.parametrize(
    ("name", "form"),
    [("NCCL_SOCKET_IFNAME", "={0}"), ("NCCL_SOCKET_IFNAME", "^lo"), ("GLOO_SOCKET_IFNAME", "{0}")],
)
def test_named_interface_takes_precedence_over_the_inventorys_address(
    monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    interface = interface_addresses()[0][0]
    monkeypatch.setenv(name, form.format(interface))
    expected = {address for named, address in interface_addresses() if named == interface or form == "^lo"}
    assert choose_address(["127.0.0.1"], os.environ) in expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network namespace")
def test_named_interface_that_has_only_ipv6_takes_precedence() -> None:
    network = "ip link set lo up; ip link add ib0 type veth peer name x; ip link set ib0 up; ip addr add fd00::5/64 dev ib0 nodad"
    show = "from orchestrator.node.rendezvous import choose_address as c; print(c(['127.0.0.1'], {'NCCL_SOCKET_IFNAME': 'ib'}))"
    argv = [
        components.program("unshare"),
        "--net",
        "sh",
        "-ec",
        f'{network}; exec "$@"',
        "sh",
        sys.executable,
        "-c",
        show,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fd00::5\n", "")


def test_missing_interface_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "no-such-interface")
    assert choose_address(["127.0.0.1"], os.environ) == "127.0.0.1"


def test_loopback_address_of_the_inventory_is_used() -> None:
    assert choose_address(["127.0.0.5"], os.environ) == "127.0.0.5"


@pytest.mark.parametrize("candidate", ["203.0.113.7", "no-such-host.invalid", "localhost", ""])
def test_address_of_another_host_and_loopback_name_are_skipped(candidate: str) -> None:
    assert choose_address([candidate], os.environ) in {address for _, address in interface_addresses()}


def test_loopback_interface_is_the_last_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    assert choose_address([], os.environ) in {address for _, address in interface_addresses()}


# ---- agents


@pytest.mark.parametrize("address", ["127.0.1.1", "::1", "localhost"])
def test_a_loopback_rendezvous_of_another_host_is_refused(ground: Ground, address: str) -> None:
    ground.job("true", ranks=[1, 1])
    code, err = ground.run(1, rendezvous=f"{address} 29500 other-boot/4026531840")
    why = f"rendezvous address {address} is loopback on n0; give n0 a routable address: in the inventory"
    assert (code, err) == (4, f"orch agent: {why}\n")
    assert ground.finished(1)["text"] == why


def test_loopback_rendezvous_of_this_host_is_accepted(ground: Ground) -> None:
    ground.job("true", ranks=[1, 1])
    assert ground.run(1, rendezvous=f"127.0.0.1 29500 {host_id()}") == (0, "")


@pytest.mark.parametrize("record", ["", "host", "host port id", "a 1 b c", "a 99999 b"])
def test_a_garbled_record_is_refused(ground: Ground, record: str) -> None:
    ground.job("true")
    code, err = ground.run(rendezvous=record)
    assert (code, "expected ADDR PORT HOST_ID" in err) == (4, True)


def test_a_node_that_is_not_the_head_needs_the_heads_record(ground: Ground) -> None:
    ground.job("true", ranks=[1, 1])
    code, err = ground.run(1)
    assert (code, "needs --rendezvous" in err) == (4, True)


def test_the_head_holds_the_port_as_long_as_it_lives(ground: Ground) -> None:
    ground.job("sh", "-c", "echo up; sleep 300")
    agent = ground.start()
    until(ground.out, awaited="output")
    port = int(ground.record()["rendezvous"].split()[1])
    with pytest.raises(OSError, match="already in use"):
        bind(socket.AF_INET, "127.0.0.1", port, reuse=False)
    agent.terminate()
    agent.wait(timeout=10)
    bind(socket.AF_INET, "127.0.0.1", port, reuse=False).close()


def test_the_head_takes_over_a_reserved_port(ground: Ground) -> None:
    reservation = Reservation(ground.python, "127.0.0.1")
    with reservation.process:
        ground.job("sh", "-c", "echo up; sleep 300")
        ground.start(rendezvous=reservation.record)
        until(ground.out, awaited="output")
        reservation.process.terminate()
    assert ground.record()["rendezvous"] == reservation.record
    with pytest.raises(OSError, match="already in use"):
        bind(socket.AF_INET, "127.0.0.1", reservation.port, reuse=False)


def test_a_port_that_was_taken_meanwhile_is_refused(ground: Ground) -> None:
    ground.job("true")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, err = ground.run(rendezvous=f"127.0.0.1 {port} {host_id()}")
    assert (code, f"rendezvous port {port}: Address already in use" in err) == (errno.EADDRINUSE, True)
    assert ground.lines("events.jsonl")[-1]["event"] == "note"  # not the last event: the launcher retries


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ("10.0.0.1 29500 h\n", "10.0.0.1 29500 h"),
        ("Welcome to n0\nloaded cuda/12.8 module\n10.0.0.1 29500 h\n10.0.0.1 29501 h\n", "10.0.0.1 29500 h"),
        ("Welcome to n0\n", ""),
        ("", ""),
    ],
)
def test_lines_that_are_no_record_are_skipped(text: str, record: str) -> None:
    assert read_record(io.StringIO(text)) == record
