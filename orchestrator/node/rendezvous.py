"""Where the ranks meet: an address of this host that the others can reach, and a port that nobody else gets."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING

from orchestrator.node.job import Job, Refused
from orchestrator.node.machine import host_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIOCGIFADDR = 0x8915


def hold_port(port: int = 0) -> socket.socket:
    """
    Bind a port (0: a free one) without listening on it.

    Both sides set SO_REUSEADDR, so rank 0's store can listen there, while a plain bind() and the kernel's choice of
    ephemeral ports keep off.
    """
    dual = socket.has_dualstack_ipv6()
    holder = socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if dual:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        holder.bind(("::" if dual else "0.0.0.0", port))  # noqa: S104  (never listens; the store binds all too)
    except OSError as error:
        holder.close()
        raise Refused(f"rendezvous port {port}: {error.strerror}; start again, on another port") from error
    return holder


def matching_interfaces(pattern: str, names: Sequence[str]) -> list[str]:
    """NCCL's rule: comma-separated prefixes; a leading `=` makes them whole names, a leading `^` an exclusion."""
    excluded = pattern.startswith("^")
    whole = pattern[excluded:].startswith("=")
    wanted = [one for one in pattern[excluded + whole :].split(",") if one]
    hits = {name for name in names if any(name == one if whole else name.startswith(one) for one in wanted)}
    return [name for name in names if (name in hits) is not excluded]


def interface_addresses() -> Iterator[str]:
    """IPv4 addresses of the interfaces that NCCL_SOCKET_IFNAME, then GLOO_SOCKET_IFNAME, name."""
    names = [name for _, name in socket.if_nameindex()]
    chosen = matching_interfaces(os.environ.get("NCCL_SOCKET_IFNAME") or "=", names)
    chosen += matching_interfaces("=" + os.environ.get("GLOO_SOCKET_IFNAME", ""), names)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in chosen:
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", os.fsencode(name)))
            except OSError:  # it has no IPv4 address
                continue
            yield socket.inet_ntoa(answer[20:24])


def usable_addresses(candidates: Sequence[str]) -> Iterator[str]:
    """This host's own addresses, best first; looked up one by one, for a slow name server is asked only if need be."""
    yield from interface_addresses()
    for host in (*candidates, socket.gethostname()):
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # a name that only the controller knows
            continue
        for family, _, _, _, address in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                try:
                    probe.bind((address[0], 0))
                except OSError:  # another host's address, or a translated one
                    continue
                yield str(address[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if probe.connect_ex(("192.0.2.1", 9)) == 0:  # sends nothing; the default route names the source
            yield str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    """Whether only the host itself can reach it."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name
        return address == "localhost"


def choose_address(candidates: Sequence[str]) -> str:
    """Where the other nodes reach this one; a loopback address only for want of another, or when it was asked for."""
    loopback = "127.0.0.1"
    for address in usable_addresses(candidates):
        if not is_loopback(address) or address in candidates:
            return address
        loopback = address
    return loopback


def reserve(candidates: Sequence[str]) -> tuple[str, socket.socket]:
    """The rendezvous record of this host, and the socket that keeps its port until it is closed."""
    holder = hold_port()
    return f"{choose_address(candidates)} {holder.getsockname()[1]} {host_id()}", holder


def join_rendezvous(job: Job, record: str | None) -> tuple[str, socket.socket | None]:
    """The record that all nodes share and, on the head, the socket that keeps the port."""
    if record is None:
        if job.node_rank != 0:
            raise Refused(f"{job.node}: node rank {job.node_rank} needs --rendezvous, the record of the head node")
        return reserve(job.addresses[:1])
    try:
        address, port, head_host_id = record.split()
        holder = hold_port(int(port)) if job.node_rank == 0 else None
    except (ValueError, OverflowError) as error:
        raise Refused(f"--rendezvous: expected ADDR PORT HOST_ID, not {record!r}") from error
    if is_loopback(address) and head_host_id != host_id():
        head = job.nodes[0] if job.nodes else "the head node"
        hint = f"give {head} a routable address: in the inventory"
        raise Refused(f"rendezvous address {address} is loopback on {head}; {hint}")
    return record, holder


def hold_rendezvous(candidates: Sequence[str]) -> int:
    """Print the record and keep the port until standard input ends or SIGTERM comes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    record, holder = reserve(candidates)
    with holder:
        print(record, flush=True)
        while os.read(0, 65536):
            pass
    return 0
