"""Whether a machine that the inventory names is this very one, so that nobody has to log in to it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from orchestrator.node.rendezvous import is_loopback
from orchestrator.transports.ssh.route import DEFAULT_PORT

if TYPE_CHECKING:
    from orchestrator.transports.ssh.route import Destination, Hop, SshSettings


def is_here(target: Destination, ssh: SshSettings) -> bool:
    """
    By its name, or by an address of this machine's that no jump host stands before: behind one, addresses are another network's.

    Raises:
        NodeError: the ssh configuration, which may call it something else, cannot be read.
    """
    if is_own_name(target.address):
        return True
    from orchestrator.transports.ssh.transport import route_to  # noqa: PLC0415  of Fabric, which is slow to import

    *jumps, hop = route_to(target, ssh)
    if jumps or hop.proxy_command:
        return False
    return is_own_name(hop.host) or _has_address_of(hop)


def is_own_name(name: str) -> bool:
    """Whether it is the host name of this machine; the short form of either will do, as on most login nodes."""
    own, name = socket.gethostname().lower(), name.lower()
    both_long = "." in own and "." in name
    return name == own if both_long else name.partition(".")[0] == own.partition(".")[0]


def _has_address_of(hop: Hop) -> bool:
    """A loopback address with a port of its own is the near end of a tunnel, and not this machine."""
    try:
        found = socket.getaddrinfo(hop.host, None, type=socket.SOCK_DGRAM)
    except socket.gaierror:
        return False  # who logs in there says so
    for family, _, _, _, address in found:
        if (hop.port == DEFAULT_PORT or not is_loopback(str(address[0]))) and _can_bind(
            family, (address[0], 0, *address[2:])
        ):
            return True
    return False


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    """The kernel lets only addresses of its own be bound; nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True
