"""The network interface of each node over which all nodes of a launch reach each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface

from orchestrator.node.facts import Address, Interface, NodeFacts

UNNAMEABLE = re.compile(r"[=^,:\s]|^$")  # what NCCL and gloo would take for syntax
# Interfaces of containers and virtual machines on the node.
INTERNAL = re.compile(
    r"(docker|podman|virbr|veth|vnet|vmnet|vboxnet|cni|flannel|cali|cilium|antrea|ovs-|ovn|genev|lxc|lxd|incusbr|kube|nodelocaldns|nerdctl"
    r"|dummy|vxlan\.calico|weave|azv)[\w.-]*|br-[0-9a-f]{12}|eni[0-9a-f]{11}"
)
TUNNEL = re.compile(r"(tun|tap|wg|tailscale|zt|nebula|utun|gre|ipip|sit|ip6tnl)[\w.-]*")
ROUTED = "the addresses of the inventory, which are in no subnet that all nodes share"
Subnet = str


@dataclass(frozen=True)
class Attachment:
    """An interface of a node, with its address in a subnet."""

    interface: Interface
    address: str


@dataclass(frozen=True)
class Sockets:
    """The chosen attachment by node; empty if none is certain. `reason` has the cause of either."""

    chosen: Mapping[str, Attachment]
    reason: str
    is_ipv6: bool = False
    share_addresses: bool = False
    """Nodes have equal addresses, as on one machine, whose CPUs they then share."""
    faster: str = ""
    """The interfaces, subnet and rate of a shared network that is at least twice as fast; empty with RDMA, or without one."""


def choose_interfaces(
    facts: Mapping[str, NodeFacts],
    addresses: Mapping[str, str],
    rails: Mapping[str, frozenset[str]],
    *,
    uses_rdma: bool,
) -> Sockets:
    """
    Choose the subnet that all nodes share, and each node's interface in it.

    If the nodes do not share the inventory's addresses, as on a routed network, but each one has its own, those interfaces are chosen.

    Args:
        addresses: the nodes' addresses in the inventory.
        rails: the interfaces by node that belong to the RDMA adapters of the training, which may have none.
        uses_rdma: False if the training uses sockets only, whose speed then counts.
    """
    if unread := [node for node, of_node in facts.items() if "interfaces" in of_node["missing"]]:
        return Sockets(
            {}, f"the interfaces of {unread[0]} could not be read: {facts[unread[0]]['missing']['interfaces']}"
        )
    resolved = _resolved_names(facts)
    addresses_of = {node: {_parsed_address(address), *resolved.get(address, ())} for node, address in addresses.items()}
    is_ipv6 = False
    subnets, fault = _shared_subnets(facts, addresses_of, rails, is_ipv6=is_ipv6)
    if not (subnets or fault):
        is_ipv6 = True
        subnets, fault = _shared_subnets(facts, addresses_of, rails, is_ipv6=is_ipv6)
    if not subnets:
        routed = _routed(facts, addresses_of, uses_tunnels=True)
        if not routed:
            return Sockets({}, fault or "no subnet is shared by all nodes", share_addresses=bool(fault))
        return Sockets(routed, ROUTED, _is_ipv6(routed), share_addresses=bool(fault))
    preferences = {
        subnet: _preference(of_subnet, addresses, resolved, rails, uses_rdma=uses_rdma)
        for subnet, of_subnet in subnets.items()
    }
    subnet = min(subnets, key=lambda name: (preferences[name], _names(subnets[name])))
    best = preferences[subnet]
    if best[0] and (routed := _routed(facts, addresses_of, uses_tunnels=False)):
        return Sockets(routed, ROUTED, _is_ipv6(routed))
    count = sum(preference == best for preference in preferences.values())
    return Sockets(
        subnets[subnet],
        _reason(subnet, preferences, count, uses_rdma=uses_rdma),
        is_ipv6,
        faster="" if uses_rdma else _faster(subnet, subnets, {name: -rank for name, (_, rank) in preferences.items()}),
    )


def has_usable_interface(facts: NodeFacts) -> bool:
    """Return whether the node has an interface with an address that other nodes may reach."""
    return any(next(_attachments(facts["interfaces"], is_ipv6=is_ipv6), None) for is_ipv6 in (False, True))


def _routed(
    facts: Mapping[str, NodeFacts], addresses_of: Mapping[str, set[str | None]], *, uses_tunnels: bool
) -> dict[str, Attachment]:
    """The interface by node that has the node's address in the inventory; empty unless all nodes have one, of one IP version."""
    for is_ipv6 in (False, True):
        found = {
            node: attachment
            for node, of_node in facts.items()
            for _, attachment in _attachments(of_node["interfaces"], is_ipv6=is_ipv6, uses_tunnels=uses_tunnels)
            if attachment.address in addresses_of[node]
        }
        if len(found) == len({attachment.address for attachment in found.values()}) == len(facts):
            return found
    return {}


def _is_ipv6(attachments: Mapping[str, Attachment]) -> bool:
    return any(":" in attachment.address for attachment in attachments.values())


def _shared_subnets(
    facts: Mapping[str, NodeFacts],
    addresses_of: Mapping[str, set[str | None]],
    rails: Mapping[str, frozenset[str]],
    *,
    is_ipv6: bool,
) -> tuple[dict[Subnet, dict[str, Attachment]], str]:
    """
    The attachments by node of each subnet that all nodes have; and the fault if nodes have the same address.

    Of several interfaces in one subnet, that with the address of the inventory counts, else the first without an RDMA adapter.
    """
    by_subnet: dict[Subnet, dict[str, Attachment]] = {}
    for node, of_node in facts.items():
        found = _attachments(of_node["interfaces"], is_ipv6=is_ipv6)
        for subnet, attachment in sorted(
            found,
            key=lambda item: (item[1].address not in addresses_of[node], item[1].interface["name"] in rails[node]),
        ):
            by_subnet.setdefault(subnet, {}).setdefault(node, attachment)
    shared = {subnet: of_subnet for subnet, of_subnet in by_subnet.items() if len(of_subnet) == len(facts)}
    distinct = {}
    fault = ""
    for subnet, of_subnet in shared.items():
        address, count = Counter(attachment.address for attachment in of_subnet.values()).most_common(1)[0]
        if count == 1:
            distinct[subnet] = of_subnet
        else:
            fault = f"{count} nodes have the address {address}, so they are one machine or on separate networks"
    return distinct, "" if distinct else fault


def _attachments(
    interfaces: Sequence[Interface], *, is_ipv6: bool, uses_tunnels: bool = False
) -> Iterator[tuple[Subnet, Attachment]]:
    """The first address of each usable interface, as gloo and torch's RPC use no other one."""
    for interface in interfaces:
        if not interface["up"] or interface["kind"] == "loopback" or INTERNAL.fullmatch(interface["name"]):
            continue
        if TUNNEL.fullmatch(interface["name"]) and not uses_tunnels:
            continue
        if UNNAMEABLE.search(interface["name"]):
            continue
        for entry in interface["addresses"]:
            found = parsed_interface(entry)
            if found is None or (found.version == 6) is not is_ipv6 or found.ip.is_loopback or found.ip.is_link_local:  # noqa: PLR2004
                continue
            yield str(found.network), Attachment(interface, str(found.ip))
            break


def parsed_interface(entry: Address) -> IPv4Interface | IPv6Interface | None:
    """An address with its network; None for a text that is no address."""
    try:
        return ip_interface(f"{entry['address']}/{entry['prefix']}")
    except ValueError:
        return None


def _preference(
    of_subnet: Mapping[str, Attachment],
    addresses: Mapping[str, str],
    resolved: Mapping[str, set[str]],
    rails: Mapping[str, frozenset[str]],
    *,
    uses_rdma: bool,
) -> tuple[bool, float]:
    """
    For sorting, best first: the addresses of the inventory, over which the nodes are known to reach each other.

    Of other subnets: with RDMA, sockets carry little, so no rail; without it, the fastest.
    """
    is_in_inventory = all(_is_address_of(addresses[node], found, resolved) for node, found in of_subnet.items())
    if uses_rdma:
        is_rail = any(attachment.interface["name"] in rails[node] for node, attachment in of_subnet.items())
        return not is_in_inventory, float(is_rail)
    return not is_in_inventory, -min(attachment.interface["speed"] or 0.0 for attachment in of_subnet.values())


def _is_address_of(address: str, attachment: Attachment, resolved: Mapping[str, set[str]]) -> bool:
    """Return whether an address or name of the inventory can be the address of this attachment; unknown names can."""
    if (parsed := _parsed_address(address)) is not None:
        return parsed == attachment.address
    return address not in resolved or attachment.address in resolved[address]


def _parsed_address(text: str) -> str | None:
    """An IP address in its usual form; None for a name."""
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def _resolved_names(facts: Mapping[str, NodeFacts]) -> dict[str, set[str]]:
    """The addresses by host name on all nodes together. A node may know its own name as a loopback address only."""
    found: dict[str, set[str]] = {}
    for of_node in facts.values():
        for host, addresses in of_node["names"]["resolved"].items():
            if usable := {
                parsed
                for address in addresses
                if (parsed := _parsed_address(address)) and not ip_address(parsed).is_loopback
            }:
                found.setdefault(host, set()).update(usable)
    return found


def _names(of_subnet: Mapping[str, Attachment]) -> list[str]:
    return sorted({attachment.interface["name"] for attachment in of_subnet.values()})


def _faster(subnet: Subnet, subnets: Mapping[Subnet, Mapping[str, Attachment]], rates: Mapping[Subnet, float]) -> str:
    """The fastest network if it has at least twice the rate of `subnet`, which must be known; else empty."""
    fastest = max(rates, key=lambda name: rates[name])
    if not rates[subnet] or rates[fastest] < 2 * rates[subnet]:
        return ""
    return f"{', '.join(_names(subnets[fastest]))} ({fastest}, {rates[fastest]:g} Gb/s)"


def _reason(subnet: Subnet, preferences: Mapping[Subnet, tuple[bool, float]], count: int, *, uses_rdma: bool) -> str:
    text = f"all nodes share {subnet}"
    is_other, rank = preferences[subnet]
    if len(preferences) == 1:
        return text
    if count > 1:
        return f"{text}; the first of {count} equal subnets"
    fastest = "" if uses_rdma else min(preferences, key=lambda name: preferences[name][1])
    if is_other is not max(preferences.values())[0]:
        quality = "the addresses of the inventory"
        quality += f"; {fastest} is faster: {-preferences[fastest][1]:g} Gb/s" if fastest not in ("", subnet) else ""
    elif uses_rdma:
        quality = "the one without an RDMA adapter"
    else:
        quality = f"the fastest: {-rank:g} Gb/s"
    return f"{text}; of {len(preferences)} shared subnets, {quality}"
