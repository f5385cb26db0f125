"""The RDMA adapters of a node that NCCL should use, from the node's facts: active, near the cards, of one link layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import takewhile

from orchestrator.node.facts import Card, Hca, HcaPort, NodeFacts
from orchestrator.portable.environment.sockets import UNNAMEABLE, parsed_interface

LAYERS = {"infiniband": "InfiniBand", "roce": "Ethernet"}  # by the preset that pins it
KINDS = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}  # the kind of network by link layer
# Distances of nvidia-smi topo. A card and an adapter up to PXB are behind one PCIe switch.
DISTANCES = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
PXB, PHB, NODE, SYS = (DISTANCES.index(name) for name in ("PXB", "PHB", "NODE", "SYS"))
OTHER_LAYER = "its link layer is"
FAR = "not near a card: for storage or management"
IWARP = "iWARP: NCCL opens it, and cannot connect over it"
LOOKS_UP_GID_FROM = (2, 21)  # older NCCL uses GID index 0 if none is set


@dataclass(frozen=True)
class Port:
    """A port of an adapter."""

    hca: Hca
    port: HcaPort

    @property
    def name(self) -> str:
        """Its name in NCCL_IB_HCA: with the number only if the adapter has more than one port."""
        hca = self.hca["name"]
        return f"{hca}:{self.port['port']}" if len(self.hca["ports"]) > 1 else hca


@dataclass(frozen=True)
class Adapters:
    """
    The ports that NCCL should use on one node.

    Without ports, the node has no usable RDMA device if `is_certain`; else it is not known which ones are right.
    """

    ports: Sequence[Port]
    reason: str
    is_certain: bool = True
    excluded: Mapping[str, str] = field(default_factory=dict)
    """The reason by name of each port that is left out."""
    uses_plugin: bool = False
    """Without ports: the node has devices such as EFA, which only a network plugin of NCCL uses."""

    @property
    def layer(self) -> str | None:
        """The link layer of the ports; None without ports."""
        return self.ports[0].port["link_layer"] if self.ports else None

    @property
    def subnet(self) -> str | None:
        """The InfiniBand subnet of all ports, by its prefix; None if they are of several, or if it is not known."""
        subnets = {subnet_prefix(port) for port in self.ports}
        return subnets.pop() if len(subnets) == 1 else None

    @property
    def value(self) -> str:
        """The value of NCCL_IB_HCA; `=` turns prefix matching off."""
        return "=" + ",".join(port.name for port in self.ports)


def choose_adapters(facts: NodeFacts, layer: str | None = None, subnet: str | None = None) -> Adapters:
    """
    Choose the ports of a node; `layer` limits the choice to one link layer, `subnet` to one InfiniBand subnet.

    Without CUDA cards, all ports are near.
    """
    unread = next((f"{key}: {why}" for key, why in facts["missing"].items() if key.split(".")[0] == "hcas"), None)
    if unread is not None:
        return Adapters((), f"the RDMA devices could not be read ({unread})", is_certain=False)
    ports = sorted((Port(hca, port) for hca in facts["hcas"] for port in hca["ports"]), key=_natural_order)
    near = _near(ports, [card for card in facts["cards"] if card["kind"] == "cuda"], facts["topology"])
    if ports and not near:
        reason = "neither PCI paths nor the topology show which adapters are near the cards"
        return Adapters((), reason, is_certain=False)
    excluded = {port.name: FAR for port in ports if port not in near}
    excluded.update((port.name, fault) for port in near if (fault := _fault(port, layer, subnet)))
    usable = [port for port in near if port.name not in excluded]
    if not usable:
        reason = f"{near[0].name}: {excluded[near[0].name]}" if near else "there is no RDMA device"
        reason += f", and {len(near) - 1} more cannot be used" if len(near) > 1 else ""
        return Adapters((), reason, excluded=excluded, uses_plugin=any(map(_needs_plugin, near)))
    chosen = _unbonded(_fastest(_physical(usable, excluded), excluded), excluded)
    chosen = _of_largest_subnet(chosen, excluded)
    doubt = _doubt(chosen)
    if doubt:
        return Adapters((), doubt, is_certain=False, excluded=excluded)
    return Adapters(chosen, _reason(chosen, excluded), excluded=excluded)


def _doubt(ports: Sequence[Port]) -> str:
    """The reason why it is not certain that NCCL should use these ports; empty if it is."""
    if unknown := next((port.name for port in ports if not port.port["link_layer"] or not port.port["state"]), None):
        return f"the state or link layer of {unknown} is not known"
    first = ports[0]
    if different := next((port for port in ports if _layer(port) != _layer(first)), None):
        return f"{first.name} is {_layer(first)} and {different.name} {_layer(different)}, both near the cards"
    by_subnet = _by_subnet(ports)
    if len(by_subnet) > 1 and None not in by_subnet and not _are_rails(by_subnet):
        subnets = " and ".join(", ".join(port.name for port in of_subnet) for of_subnet in by_subnet.values())
        return f"{subnets} are in different InfiniBand subnets, all near the cards"
    return ""


def gid_index(adapters: Adapters, facts: NodeFacts) -> tuple[int | None, str]:
    """The GID index that NCCL needs on this node, None if it should stay unset; and the reason."""
    if adapters.layer is None:
        return None, "no adapters are chosen"
    if adapters.layer == LAYERS["infiniband"]:
        return None, "a setting of RoCE, and the network is InfiniBand"
    library = facts["software"]["nccl"]
    version = parsed_version(library["version"] if library else None)
    if version is None:
        return None, "the version of NCCL is not known; from 2.21 on it finds the index itself"
    text = ".".join(map(str, version))
    if version >= LOOKS_UP_GID_FROM:
        return None, f"NCCL {text} finds the index itself, for each adapter"
    tables = [list(_routable_gids(port, facts)) for port in adapters.ports]
    family = 4 if any(gid.family == 4 for table in tables for gid in table) else 6  # noqa: PLR2004
    common = set.intersection(*({gid.index for gid in table if gid.family == family} for table in tables))
    if len(common) == 1:
        (index,) = common
        interface = next(gid.interface for gid in tables[0] if gid.index == index)
        return (
            index,
            f"NCCL {text} does not find it; index {index} is RoCE v2 of the IPv{family} address of {interface}",
        )
    return None, f"NCCL {text} uses index 0, and no single index is RoCE v2 with IPv{family} on {adapters.value[1:]}"


def without_unshared_networks(adapters: Mapping[str, Adapters], facts: Mapping[str, NodeFacts]) -> dict[str, Adapters]:
    """
    The adapters without RoCE ports whose IP networks no other node can reach, where each node has ports in networks that all share.

    NCCL pairs the ports of two nodes by their position. If no port is in a shared network, the network is routed and all stay. If a node
    has no more ports in shared networks than in unshared ones, it is not known which ones are right.
    """
    networks = {
        node: {port.name: _networks(port, facts[node]) for port in chosen.ports} for node, chosen in adapters.items()
    }
    if any(chosen.layer != LAYERS["roce"] for chosen in adapters.values()) or len(adapters) < 2:  # noqa: PLR2004
        return dict(adapters)
    shared = set.intersection(*(set().union(*of_node.values()) for of_node in networks.values()))
    if not all(any(of_port & shared for of_port in of_node.values()) for of_node in networks.values()):
        return dict(adapters)
    return {node: _shared_ports(chosen, networks[node], shared) for node, chosen in adapters.items()}


def _shared_ports(adapters: Adapters, networks: Mapping[str, set[str]], shared: set[str]) -> Adapters:
    kept = [port for port in adapters.ports if networks[port.name] & shared]
    excluded = {
        port.name: f"{', '.join(sorted(networks[port.name]))}, a network that not all nodes have"
        if networks[port.name]
        else "its interface has no address that other nodes can reach"
        for port in adapters.ports
        if port not in kept
    }
    if not excluded:
        return adapters
    if sum(bool(networks[name]) for name in excluded) >= len(kept):
        names = f"{', '.join(port.name for port in kept)} {'is' if len(kept) == 1 else 'are'}"
        reason = f"{names} in a network that all nodes have, and {', '.join(excluded)} not"
        return Adapters((), reason, is_certain=False, excluded=adapters.excluded)
    excluded = {**adapters.excluded, **excluded}
    return Adapters(kept, _reason(kept, excluded), excluded=excluded)


def _networks(port: Port, facts: NodeFacts) -> set[str]:
    """The IP networks of a port's interfaces: its own, and those in its GID table, such as a bond; without link-local ones."""
    names = {*port.hca["interfaces"], *(gid["interface"] for gid in port.port["gids"])}
    found = set()
    for interface in facts["interfaces"]:
        for entry in interface["addresses"] if interface["name"] in names else ():
            parsed = parsed_interface(entry)
            if parsed is not None and not parsed.ip.is_link_local:
                found.add(str(parsed.network))
    return found


def needs_ipv6(adapters: Adapters, facts: NodeFacts) -> bool:
    """Return whether the GIDs of all RoCE ports are of IPv6 addresses only, which NCCL does not choose by itself (2.21 to 2.30)."""
    families = [{gid.family for gid in _routable_gids(port, facts)} for port in adapters.ports]
    return bool(families) and all(of_port == {6} for of_port in families)


def gid_doubt(adapters: Adapters, facts: NodeFacts) -> str:
    """The reason why NCCL uses a GID over which other nodes cannot be reached, or may do so; empty without one."""
    if adapters.layer != LAYERS["roce"]:
        return ""
    link_local = [port.name for port in adapters.ports if _has_only_link_local_gids(port)]
    if link_local:
        return f"{', '.join(link_local)}: the RoCE v2 GIDs are link-local, as the interface has no other address"
    library = facts["software"]["nccl"]
    version = parsed_version(library["version"] if library else None)
    index, reason = gid_index(adapters, facts)
    return reason if index is None and version is not None and version < LOOKS_UP_GID_FROM else ""


def parsed_version(text: str | None) -> tuple[int, ...] | None:
    """The parts of a version such as 2.21.5; None if there is none."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def _natural_order(port: Port) -> list[tuple[int, str]]:
    """For sorting: mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", port.name)]


def _needs_plugin(port: Port) -> bool:
    """Return whether NCCL skips the port for its link layer, as that of EFA: only a network plugin uses it."""
    return bool(port.port["link_layer"]) and port.port["link_layer"] not in KINDS


def is_trap(port: HcaPort, hca: Hca) -> bool:
    """Return whether NCCL takes the port and cannot connect over it: it has no test for iWARP (2.30.7)."""
    return hca["node_type"] == "RNIC" and port["state"] == "ACTIVE" and hca["usable"]


def _other_network(port: Port, layer: str | None, subnet: str | None) -> str:
    """The network of a port if it is not the one that is asked for."""
    if layer is not None and _layer(port) not in ("", layer):
        return f"{OTHER_LAYER} {_layer(port)}"
    if subnet is not None and subnet_prefix(port) not in (None, subnet):
        return f"InfiniBand subnet {subnet_prefix(port)}, which not all nodes have"
    return ""


def _unknown_kind(port: Port) -> str:
    """The kind of a port that is neither InfiniBand nor RoCE; empty if it is."""
    if port.hca["node_type"] == "RNIC":
        return IWARP
    if _needs_plugin(port):
        return f"link layer {_layer(port)}, as of EFA: for a network plugin of NCCL, not for NCCL_IB_HCA"
    return ""


def _fault(port: Port, layer: str | None, subnet: str | None) -> str:
    """The reason why NCCL cannot use the port; empty if it can, or if the state is not known."""
    state = port.port["state"]
    if UNNAMEABLE.search(port.hca["name"]):
        return "NCCL_IB_HCA cannot hold its name"
    if not port.hca["usable"]:
        return "its device file is missing, as in a container without /dev/infiniband"
    if state and state != "ACTIVE":
        return f"port {port.port['port']} is {state}"
    return _unknown_kind(port) or _other_network(port, layer, subnet)


def _near(ports: Sequence[Port], cards: Sequence[Card], topology: Mapping[str, Mapping[str, str]]) -> list[Port]:
    """
    The ports near the cards, in order and in any state; all if there are no cards, none if no distance is known.

    On a node whose cards share no PCIe switch with an adapter, distance does not show which adapters are for training.
    """
    if not cards:
        return list(ports)
    distances = [{port.name: _distance(card, port.hca, topology) for port in ports} for card in cards]
    names = {name for of_card in distances for name, value in of_card.items() if value is not None and value <= PXB}
    if not names:
        return [port for port in ports if any(of_card[port.name] is not None for of_card in distances)]
    for of_card in distances:  # a card without an adapter on its PCIe switch
        known = {name: value for name, value in of_card.items() if value is not None}
        nearest = {name for name, value in known.items() if value == min(known.values())}
        if not nearest & names:
            names |= nearest
    return [port for port in ports if port.name in names]


def _distance(card: Card, hca: Hca, topology: Mapping[str, Mapping[str, str]]) -> int | None:
    """The index in DISTANCES by the vendor tool, else by the PCI paths, else by the NUMA nodes; None if none is known."""
    cell = topology.get(f"GPU{card['index']}", {}).get(hca["name"])
    if cell in DISTANCES:
        return DISTANCES.index(cell)
    if card["pci_path"] and hca["pci_path"]:
        shared = _shared_bridges(card["pci_path"], hca["pci_path"])
        if shared:
            return PXB if shared > 1 else PHB
    if card["numa"] is None or hca["numa"] is None:
        return None
    return NODE if card["numa"] == hca["numa"] else SYS


def _shared_bridges(card: str, hca: str) -> int:
    """The common parts of two PCI paths from the root complex (pci0000:5d) on; more than one means a common bridge."""
    card_parts, hca_parts = (
        path[path.find("/pci") + 1 :].split("/")[:-1] if "/pci" in path else [] for path in (card, hca)
    )
    pairs = zip(card_parts, hca_parts)  # noqa: B905  paths differ in length
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _fastest(ports: list[Port], excluded: dict[str, str]) -> list[Port]:
    """The ports of the highest rate; ports of unknown rate are kept."""
    fastest = max((port.port["rate"] or 0.0 for port in ports), default=0.0)
    slower = [port for port in ports if port.port["rate"] and port.port["rate"] < fastest]
    kept = [port for port in ports if port not in slower]
    for port in slower:
        is_other = _layer(port) and _layer(port) not in map(_layer, kept)
        layer = f"{OTHER_LAYER} {_layer(port)}, " if is_other else ""
        excluded[port.name] = f"{layer}{port.port['rate']:g} Gb/s instead of {fastest:g}"
    return kept


def _physical(ports: list[Port], excluded: dict[str, str]) -> list[Port]:
    """The ports without virtual functions of devices that the node can use itself: those are for containers and virtual machines."""

    def device(address: str | None) -> str | None:
        return address and address.rpartition(".")[0]  # a bond has the address of the first port only

    present = {device(port.hca["pci"]) for port in ports if port.hca["physical_function"] is None}
    virtual = [port for port in ports if device(port.hca["physical_function"]) in present - {None}]
    excluded.update((port.name, "a virtual function, for containers or virtual machines") for port in virtual)
    return [port for port in ports if port not in virtual]


def subnet_prefix(port: Port) -> str | None:
    """The prefix of an InfiniBand port's subnet: the first half of GID 0; None on Ethernet, or if it is not known."""
    gid = next((gid["gid"] for gid in port.port["gids"] if gid["index"] == 0), "")
    return gid[: len("fe80:0000:0000:0000")] or None if _layer(port) == LAYERS["infiniband"] else None


def _by_subnet(ports: Sequence[Port]) -> dict[str | None, list[Port]]:
    by_subnet: dict[str | None, list[Port]] = {}
    for port in ports:
        by_subnet.setdefault(subnet_prefix(port), []).append(port)
    return by_subnet


def _are_rails(by_subnet: Mapping[str | None, Sequence[Port]]) -> bool:
    """Return whether each of several ports has a separate subnet, as on rails that are not connected with each other."""
    return len(by_subnet) > 2 and all(len(of_subnet) == 1 for of_subnet in by_subnet.values())  # noqa: PLR2004


def _of_largest_subnet(ports: list[Port], excluded: dict[str, str]) -> list[Port]:
    """The ports of the InfiniBand subnet with the most of them, as storage has fewer; all if there is no such one."""
    by_subnet = _by_subnet(ports)
    (subnet, largest), *smaller = sorted(by_subnet.items(), key=lambda item: -len(item[1]))
    if None in by_subnet or not smaller or len(smaller[0][1]) == len(largest):
        return ports
    for prefix, of_subnet in smaller:
        excluded.update(
            (port.name, f"InfiniBand subnet {prefix} instead of {subnet}: for storage") for port in of_subnet
        )
    return largest


def _unbonded(ports: list[Port], excluded: dict[str, str]) -> list[Port]:
    """The ports without bonds, unless all are bonds: a single bond among adapters is for storage or management."""
    bonds = [port for port in ports if "bond" in port.hca["name"]]
    if len(bonds) == len(ports):
        return ports
    excluded.update((port.name, "a bond: for storage or management") for port in bonds)
    return [port for port in ports if port not in bonds]


def _reason(ports: Sequence[Port], excluded: Mapping[str, str]) -> str:
    """The reason for these ports, and for the absence of the others."""
    rate = ports[0].port["rate"]
    text = f"{len(ports)} active {KINDS.get(_layer(ports[0]), _layer(ports[0]))} ports near the cards"
    text += f", {rate:g} Gb/s" if rate else ""
    return "; ".join([text, *(f"without {names}" for names in fault_texts(excluded))])


def fault_texts(excluded: Mapping[str, str]) -> list[str]:
    """The ports that are left out and why, one text for all with the same reason."""
    names: dict[str, list[str]] = {}
    for name, why in excluded.items():
        names.setdefault(why, []).append(name)
    return [f"{', '.join(of_fault)}: {why}" for why, of_fault in names.items()]


def _layer(port: Port) -> str:
    return port.port["link_layer"] or ""


@dataclass(frozen=True)
class _RoutableGid:
    """A slot of a GID table with RoCE v2 of an address that the interface has; `family` is 4 or 6, as in IPv4."""

    index: int
    interface: str
    family: int


def _routable_gids(port: Port, facts: NodeFacts) -> Iterable[_RoutableGid]:
    """The slots of RoCE v2 whose address their interface has, without link-local ones."""
    addresses = {
        (interface["name"], entry["address"]) for interface in facts["interfaces"] for entry in interface["addresses"]
    }
    for gid in port.port["gids"]:
        address, interface = gid_address(gid["gid"]), gid["interface"]
        if gid["type"] != "RoCE v2" or address is None or interface is None or address.is_link_local:
            continue
        if (interface, str(address)) in addresses:
            yield _RoutableGid(gid["index"], interface, address.version)


def _has_only_link_local_gids(port: Port) -> bool:
    addresses = [gid_address(gid["gid"]) for gid in port.port["gids"] if gid["type"] == "RoCE v2"]
    return bool(addresses) and all(address is None or address.is_link_local for address in addresses)


def gid_address(gid: str) -> IPv4Address | IPv6Address | None:
    """The address from which a GID is made; None for a text that is no GID."""
    try:
        address = ip_address(gid)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
