"""The rendezvous address of a run: where the ranks meet, reserved on the head and refused if other machines cannot use it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.errors import LaunchError

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""Variables that name the network cards of a training; the address of such a card on the head is preferred."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Address and port on the head node; `host_id` identifies the machine (and network namespace)."""

    address: str
    port: int
    host_id: str


def parse_rendezvous(text: str) -> Rendezvous:
    """Parse the head's record: "ADDRESS PORT HOST_ID"."""
    address, port, host_id = text.split(maxsplit=2)
    return Rendezvous(address, int(port), host_id)


def check_reachable(rendezvous: Rendezvous, head: str, hosts: Mapping[str, str]) -> None:
    """
    Refuse a head address that leads to another machine when used on another node.

    Args:
        hosts: node -> host id; nodes with the same id share a loopback interface.

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
