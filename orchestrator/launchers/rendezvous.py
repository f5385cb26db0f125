"""The rendezvous of an attempt: where rank 0 hosts the store, and whether the others can reach that. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.errors import LaunchError

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""The variables that name the network cards of a training; the head's address is taken from there first."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Address and port on the head node; `host_id` tells which machine (and network namespace) that is."""

    address: str
    port: int
    host_id: str


def parse(text: str) -> Rendezvous:
    """Read what the head reports: "ADDRESS PORT HOST_ID"."""
    address, port, host_id = text.split(maxsplit=2)
    return Rendezvous(address, int(port), host_id)


def check_reachable(rendezvous: Rendezvous, head: str, hosts: Mapping[str, str]) -> None:
    """
    Refuse a head address that means something else on another node.

    Args:
        hosts: node -> host id, equal for nodes that share a loopback.

    Raises:
        LaunchError: the address is loopback, and at least one node is on another machine.
    """
    if not ipaddress.ip_address(rendezvous.address).is_loopback:
        return
    remote = [node for node, host_id in hosts.items() if host_id != rendezvous.host_id]
    if remote:
        raise LaunchError(
            f"the rendezvous address of {head} is {rendezvous.address}, a loopback address, "
            f"but {', '.join(remote[:3])} {'is' if len(remote) == 1 else 'are'} on other machines",
            hint=f"give {head} a routable address: in the inventory, or name its network card in env: NCCL_SOCKET_IFNAME "
            "(GLOO_SOCKET_IFNAME on CPU); a 127.0.1.1 line in its /etc/hosts is the usual cause",
        )
