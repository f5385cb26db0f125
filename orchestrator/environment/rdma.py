"""The RDMA adapters of a node that NCCL should use, from the node's facts: active, near the cards, of one link layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from itertools import takewhile

from orchestrator.environment.sockets import UNNAMEABLE
from orchestrator.node.facts import Card, Hca, HcaPort, NodeFacts

LAYERS = {"infiniband": "InfiniBand", "roce": "Ethernet"}  # by the preset that pins it
KINDS = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}  # the kind of network by link layer
# Distances of nvidia-smi topo. A card and an adapter up to PXB are behind one PCIe switch.
DISTANCES = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
PXB, PHB, NODE, SYS = (DISTANCES.index(name) for name in ("PXB", "PHB", "NODE", "SYS"))
OTHER_LAYER = "its link layer is"
FAR = "not near a card: for storage or management"
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

    @property
    def layer(self) -> str | None:
        """The link layer of the ports; None without ports."""
        return self.ports[0].port["link_layer"] if self.ports else None

    @property
    def value(self) -> str:
        """The value of NCCL_IB_HCA; `=` turns prefix matching off."""
        return "=" + ",".join(port.name for port in self.ports)


def choose_adapters(facts: NodeFacts, layer: str | None = None) -> Adapters:
    """Choose the ports of a node; `layer` limits the choice to one link layer. Without CUDA cards, all ports are near."""
    unread = next((f"{key}: {why}" for key, why in facts["missing"].items() if key.split(".")[0] == "hcas"), None)
    if unread is not None:
        return Adapters((), f"the RDMA devices could not be read ({unread})", is_certain=False)
    ports = sorted((Port(hca, port) for hca in facts["hcas"] for port in hca["ports"]), key=_natural_order)
    near = _near(ports, [card for card in facts["cards"] if card["kind"] == "cuda"], facts["topology"])
    if ports and not near:
        reason = "neither PCI paths nor the topology show which adapters are near the cards"
        return Adapters((), reason, is_certain=False)
    excluded = {port.name: FAR for port in ports if port not in near}
    excluded.update((port.name, fault) for port in near if (fault := _fault(port, layer)))
    usable = [port for port in near if port.name not in excluded]
    if not usable:
        reason = f"{near[0].name}: {excluded[near[0].name]}" if near else "there is no RDMA device"
        reason += f", and {len(near) - 1} more cannot be used" if len(near) > 1 else ""
        return Adapters((), reason, excluded=excluded)
    chosen = _unbonded(_fastest(usable, excluded), excluded)
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
    common = set.intersection(*(set(_routable_gids(port, facts)) for port in adapters.ports))
    if len(common) == 1:
        (index,) = common
        gid = next(gid for gid in adapters.ports[0].port["gids"] if gid["index"] == index)
        interface = gid["interface"]
        return index, f"NCCL {text} does not find it; index {index} is RoCE v2 of the IPv4 address of {interface}"
    return None, f"NCCL {text} uses index 0, and no single index is RoCE v2 with IPv4 on {adapters.value[1:]}"


def parsed_version(text: str | None) -> tuple[int, ...] | None:
    """The parts of a version such as 2.21.5; None if there is none."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def _natural_order(port: Port) -> list[tuple[int, str]]:
    """For sorting: mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", port.name)]


def _fault(port: Port, layer: str | None) -> str:
    """The reason why NCCL cannot use the port; empty if it can, or if the state is not known."""
    state, link_layer = port.port["state"], port.port["link_layer"]
    if UNNAMEABLE.search(port.hca["name"]):
        return "NCCL_IB_HCA cannot hold its name"
    if not port.hca["usable"]:
        return "its device file is missing, as in a container without /dev/infiniband"
    if state and state != "ACTIVE":
        return f"port {port.port['port']} is {state}"
    if layer is not None and link_layer and link_layer != layer:
        return f"{OTHER_LAYER} {link_layer}"
    return ""


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


def _routable_gids(port: Port, facts: NodeFacts) -> Iterable[int]:
    """The indexes of RoCE v2 whose IPv4 address the entry's interface has."""
    addresses = {
        (interface["name"], entry["address"]) for interface in facts["interfaces"] for entry in interface["addresses"]
    }
    for gid in port.port["gids"]:
        if gid["type"] == "RoCE v2" and (gid["interface"], _ipv4(gid["gid"])) in addresses:
            yield gid["index"]


def _ipv4(gid: str) -> str | None:
    try:
        address = ip_address(gid)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped) if mapped else None
