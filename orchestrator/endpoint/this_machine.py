"""Recognise this machine in the inventory, by its name or its addresses: no login is needed on it."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.node.rendezvous import is_loopback
from orchestrator.transports.ssh.route import DEFAULT_PORT

if TYPE_CHECKING:
    from orchestrator.transports.ssh.route import Destination, SshSettings


def is_this_machine(target: Destination, ssh: SshSettings) -> bool:
    """
    Return whether the target has this machine's name, or one of this machine's addresses and no jump host.

    Behind a jump host, addresses belong to another network.

    Raises:
        NodeError: the ssh configuration, which may define another host name, cannot be read.
    """
    if is_this_host_name(target.address):
        return True
    from orchestrator.transports.ssh.transport import route_to  # imports Fabric, which is slow

    *jumps, hop = route_to(target, ssh)
    if jumps or hop.proxy_command:
        return False
    if is_this_host_name(hop.host):
        return True
    try:
        found = socket.getaddrinfo(hop.host, None, type=socket.SOCK_DGRAM)
    except socket.gaierror:
        return False  # a login reports it
    for family, _, _, _, address in found:
        # a loopback address with a port other than 22 is the near end of a tunnel, not this machine
        if hop.port == DEFAULT_PORT or not is_loopback(str(address[0])):
            # the kernel refuses to bind addresses of other machines; nothing is sent
            with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):
                probe.bind((address[0], 0, *address[2:]))
                return True
    return False


def is_this_host_name(name: str) -> bool:
    """Return whether this is the host name of this machine. If one of the two names is short, only the short names count."""
    host_name, name = socket.gethostname().lower(), name.lower()
    are_long = "." in host_name and "." in name
    return name == host_name if are_long else name.partition(".")[0] == host_name.partition(".")[0]
