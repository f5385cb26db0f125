"""The rendezvous of the ranks: an address of this host that the other nodes can reach, and a reserved port."""

from __future__ import annotations

import fcntl
import os
import struct
import sys

from orchestrator.node.system.fast_stdlib import Socket, signal, socket
from orchestrator.node.system.machine import host_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SIOCGIFADDR = 0x8915
IPV6_TABLE = "/proc/net/if_inet6"
GLOBAL_SCOPE = "00"
RECORD_WORDS = 3  # address, port, host id


def hold_port(port: int = 0) -> Socket:
    """
    Bind a port (0: a free one) without listening on it.

    Both sides set SO_REUSEADDR, so rank 0's store can listen there; a plain bind() fails, and the kernel does not choose it
    as an ephemeral port.
    """
    try:
        holder, host = Socket(socket.AF_INET6, socket.SOCK_STREAM), "::"
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:  # the kernel has no IPv6
        holder, host = Socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0"  # noqa: S104  as below
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((host, port))  # (never listens; the store binds all too)
    except OSError as error:
        holder.close()
        raise OSError(error.errno, f"rendezvous port {port}: {error.strerror}") from error
    return holder


def matching_interfaces(pattern: str, names: Sequence[str]) -> list[str]:
    """Select interfaces as NCCL does: by comma-separated prefixes; a leading `=` makes them full names, a leading `^` excludes."""
    excluded = pattern.startswith("^")
    whole = pattern[excluded:].startswith("=")
    prefixes = [prefix for prefix in pattern[excluded + whole :].split(",") if prefix]
    matches = {
        name for name in names if any(name == prefix if whole else name.startswith(prefix) for prefix in prefixes)
    }
    return [name for name in names if (name in matches) is not excluded]


def interface_addresses(environ: Mapping[str, str]) -> Iterator[str]:
    """Addresses of the interfaces in NCCL_SOCKET_IFNAME, then of those in GLOO_SOCKET_IFNAME; IPv6 ones after all of IPv4."""
    names = [name for _, name in socket.if_nameindex()]
    chosen = matching_interfaces(environ.get("NCCL_SOCKET_IFNAME") or "=", names)
    chosen += matching_interfaces("=" + environ.get("GLOO_SOCKET_IFNAME", ""), names)
    with Socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in chosen:
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", os.fsencode(name)))
            except OSError:  # it has no IPv4 address
                continue
            yield socket.inet_ntoa(answer[20:24])
    if chosen and os.path.exists(IPV6_TABLE):  # not if the kernel has no IPv6
        with open(IPV6_TABLE) as file:
            rows = [line.split() for line in file]  # address, index, prefix length, scope, flags, name
        for name in chosen:
            for row in rows:
                if row[5] == name and row[3] == GLOBAL_SCOPE:
                    yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))


def usable_addresses(candidates: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Addresses of this host, best first; looked up one by one, to query a slow name server only if necessary."""
    yield from interface_addresses(environ)
    for host in (*candidates, os.uname().nodename):
        try:
            found = socket.getaddrinfo(host.encode() if host.isascii() else host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # only the controller can resolve it
            continue
        for family, _, _, _, address in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
            with Socket(family, socket.SOCK_DGRAM) as probe:
                try:
                    probe.bind((address[0], 0))
                except OSError:  # another host's address, or a translated one
                    continue
                yield str(address[0])
    with Socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if probe.connect_ex(("192.0.2.1", 9)) == 0:  # sends nothing; the default route determines the source address
            yield str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    """Return whether only the host itself can reach the address."""
    return address.startswith("127.") or address in ("::1", "localhost")


def choose_address(candidates: Sequence[str], environ: Mapping[str, str]) -> str:
    """The address at which other nodes reach this one; a loopback address only if there is no other or a candidate is one."""
    loopback = "127.0.0.1"
    for address in usable_addresses(candidates, environ):
        if not is_loopback(address) or address in candidates:
            return address
        loopback = address
    return loopback


def address_towards(host: str) -> str:
    """This host's address on the route to another host, empty if there is no route; nothing is sent."""
    with Socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        code = probe.connect_ex((host, 9))
        return str(probe.getsockname()[0]) if code == 0 else ""


def reserve(candidates: Sequence[str], environ: Mapping[str, str]) -> tuple[str, Socket]:
    """The rendezvous record of this host, and the socket that reserves its port until it is closed."""
    holder = hold_port()
    return f"{choose_address(candidates, environ)} {holder.getsockname()[1]} {host_id()}", holder


def read_record(lines: Iterable[str]) -> str:
    """Return the first line that is a record; empty if there is none. A TaskProlog of the cluster may print more."""
    for line in lines:
        words = line.split()
        if len(words) == RECORD_WORDS and words[1].isdecimal():
            return line.strip()
    return ""


def hold_rendezvous(candidates: Sequence[str]) -> int:
    """Print the record and hold the port until standard input ends or SIGTERM arrives; for each line read, do so with another port."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        record, holder = reserve(candidates, os.environ)
        with holder:
            print(record, flush=True)
            if not os.read(0, 65536):
                return 0
