"""
The CPUs of each rank: those near the rank's card, in one NUMA node, which several ranks may share.

Ranks are bound only if everything is known: the cards in the order of their indices, which one is whose, their NUMA nodes, and that
nobody else has chosen CPUs. All facts are read below a root, without a vendor's tool.
"""

from __future__ import annotations

import os

from orchestrator.node.cards import VISIBLE, visible_devices
from orchestrator.node.number_text import counted, format_numbers, parse_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.node.run.job import Job

PCI = "sys/bus/pci/devices"
NVIDIA = "proc/driver/nvidia/gpus"
ENFLAME = ("0x1e36", "0x1ea0")
ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z"
LEAST_SHARE = 0.75  # of the CPUs that a rank would have if all CPUs were divided evenly among the cards
CPUSETS = ("sys/fs/cgroup{}/cpuset.cpus.effective", "sys/fs/cgroup/cpuset{}/cpuset.effective_cpus")


class Unbound(Exception):
    """The ranks are not bound; the message is the reason."""


class Card:
    """A card by its PCI address; `uuid` and `model` are empty if they are unknown."""

    def __init__(self, address: str, uuid: str = "", model: str = "") -> None:
        self.address, self.uuid, self.model = address, uuid, model


def bind_ranks(job: Job, environ: Mapping[str, str], affinity: set[int], root: str = "/") -> list[set[int]]:
    """
    The CPUs of each rank of the node, in local order; Unbound if they are not known, or the ranks need none.
    `affinity`: the CPUs that the agent may use.
    """
    if job.bind == "none":
        raise Unbound("bind: none in the inventory")
    if job.is_per_node:
        raise Unbound("the program starts the ranks")
    if affinity != usable_cpus(root):
        raise Unbound(f"the CPUs {format_numbers(affinity)} were chosen outside of orch")
    kind = job.accelerator if job.accelerator != "auto" else kind_of(root)
    if kind not in VISIBLE:
        raise Unbound("the ranks use no cards")
    cards = nvidia_cards(root) if kind == "cuda" else enflame_cards(root)
    mine = visible_cards(cards, environ.get(VISIBLE[kind]), environ)
    if job.slurm is not None and len(mine) < len(cards):
        raise Unbound(f"{len(mine)} of {len(cards)} cards are visible, and Slurm may have renumbered them")
    ranks_cards = cards_of_ranks(mine, len(job.rank_numbers))
    cpus = [local_cpus(card.address, root) & affinity for card in ranks_cards]
    refuse_useless(cpus, affinity, len(cards))
    return cpus


def cards_of_ranks(visible: list[Card], ranks: int) -> list[Card]:
    """The card of each rank; Unbound if they are too few, or one rank may use several."""
    if len(visible) < ranks:
        raise Unbound(f"{counted(ranks, 'rank')} for {counted(len(visible), 'visible card')}")
    if ranks == 1 and len(visible) > 1:
        raise Unbound(f"the one rank may use all of the {len(visible)} visible cards")
    return visible[:ranks]


def refuse_useless(cpus: Sequence[set[int]], affinity: set[int], card_count: int) -> None:
    """Raise Unbound if the ranks would gain nothing by these CPUs, or have too few of them."""
    if not all(cpus):
        raise Unbound("a card has no CPU near it that the agent may use")
    if all(near == affinity for near in cpus):
        raise Unbound("all CPUs are near every card")
    for near in cpus:
        sharing = cpus.count(near)
        if len(near) * card_count < LEAST_SHARE * len(affinity) * sharing:
            raise Unbound(f"only {len(near)} of {len(affinity)} CPUs are near the cards of {sharing} ranks")


def text_of(*parts: str) -> str:
    """The stripped text of a file; empty if it cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16).strip()
    except OSError:
        return ""


def names_in(*parts: str) -> list[str]:
    try:
        return os.listdir(os.path.join(*parts))
    except OSError:
        return []


def usable_cpus(root: str) -> set[int]:
    """The CPUs that the cgroup leaves to this process, else all that are online; Unbound if neither can be read."""
    for line in text_of(root, "proc/self/cgroup").splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers and "cpuset" not in controllers.split(","):
            continue
        for file in CPUSETS:
            cpus = parse_numbers(text_of(root, file.format(path.rstrip("/"))))
            if cpus:
                return cpus
    cpus = parse_numbers(text_of(root, "sys/devices/system/cpu/online"))
    if not cpus:
        raise Unbound("the CPUs of the node cannot be read")
    return cpus


def kind_of(root: str) -> str:
    """The kind of the node's cards; empty if it has none."""
    return "cuda" if names_in(root, NVIDIA) else "gcu" if device_files(root, "gcu") else ""


def device_files(root: str, prefix: str) -> int:
    """The number of device files such as /dev/nvidia0."""
    return sum(name.startswith(prefix) and name[len(prefix) :].isdigit() for name in names_in(root, "dev"))


def nvidia_cards(root: str) -> list[Card]:
    """The NVIDIA cards in the order of PCI addresses, by which nvidia-smi numbers them."""
    cards = []
    for address in sorted(names_in(root, NVIDIA), key=pci_key):
        lines = (line.partition(":") for line in text_of(root, NVIDIA, address, "information").splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
        if "Yes" not in (fields.get("GPU Excluded"), fields.get("Blacklisted")):
            cards.append(Card(address, fields.get("GPU UUID", ""), fields.get("Model", "")))
    return checked(cards, device_files(root, "nvidia"))


def enflame_cards(root: str) -> list[Card]:
    """The Enflame cards in the order of PCI addresses."""
    addresses = [name for name in names_in(root, PCI) if text_of(root, PCI, name, "vendor") in ENFLAME]
    return checked([Card(address) for address in sorted(addresses, key=pci_key)], device_files(root, "gcu"))


def checked(cards: list[Card], device_count: int) -> list[Card]:
    """The cards, if each has a device file; otherwise other devices of the vendor are among them, or some are hidden."""
    import re  # slow to import, and only a node with cards needs it

    if len(cards) != device_count or not all(re.match(ADDRESS, card.address) for card in cards):
        raise Unbound(f"{counted(len(cards), 'card')} on the PCI bus, and {counted(device_count, 'device file')}")
    return cards


def pci_key(address: str) -> list[int]:
    import re

    return [int(part, 16) for part in re.findall(r"[0-9a-fA-F]+", address)]


def visible_cards(cards: Sequence[Card], visible: str | None, environ: Mapping[str, str]) -> list[Card]:
    """The cards of the ranks, in their order; Unbound if the variable has other names than index and UUID, or the order is unknown."""
    if len({card.model for card in cards}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise Unbound("the cards are of several models, which CUDA numbers by their speed")
    if visible is None:
        return list(cards)
    by_name = {
        **{str(index): card for index, card in enumerate(cards)},
        **{card.uuid: card for card in cards if card.uuid},
    }
    found = visible_devices(by_name, visible)
    if found is None:
        raise Unbound(f"visible devices {visible!r}")
    return found


def local_cpus(address: str, root: str) -> set[int]:
    """The CPUs of a card's NUMA node; Unbound if the firmware does not report it."""
    node = text_of(root, PCI, address, "numa_node")
    cpus = parse_numbers(text_of(root, PCI, address, "local_cpulist"))
    if not node.isdigit() or not cpus:  # -1: unknown, and the list then has all CPUs
        raise Unbound(f"the NUMA node of {address} is unknown")
    return cpus
