"""PCI addresses, paths and NUMA nodes of devices, from sysfs. Devices with a long common path are near each other."""

from __future__ import annotations

import functools
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence

    from orchestrator.node.probe.source import Source

ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
DEVICES = "/sys/devices/"
BUS = "/sys/bus/pci/devices"
NVIDIA, ENFLAME = ("0x10de",), ("0x1e36", "0x1ea0")  # vendors
CARD_CLASSES = ("0x0300", "0x0302", "0x1200")  # display, 3D and processing accelerators


def address_in(path: Optional[str]) -> Optional[str]:
    """The address of the PCI device that a resolved path below /sys/devices leads to; None if it is no PCI device."""
    found = ADDRESS.findall(path or "")
    return found[-1] if found else None


def below_devices(path: Optional[str]) -> Optional[str]:
    return path[len(DEVICES) :] if path and path.startswith(DEVICES) else None


def numa_of(source: Source, device: str) -> Optional[int]:
    """The NUMA node of a device folder; None if the firmware gives none (-1)."""
    node = source.number(f"{device}/numa_node")
    return node if node is not None and node >= 0 else None


def cards_of(source: Source, vendors: Sequence[str]) -> List[str]:
    """The addresses of a vendor's cards on the PCI bus, which a container shows even if it may not use them."""
    return [
        address
        for address in source.names(BUS)
        if source.text(f"{BUS}/{address}/vendor") in vendors
        and (source.text(f"{BUS}/{address}/class") or "").startswith(CARD_CLASSES)
    ]


@functools.lru_cache(maxsize=1)
def may_have_cards(source: Source) -> bool:
    """True if there is a vendor's tool, card or device file; reading the cards then costs the import of the tools' parsers."""
    has_tool = source.find("nvidia-smi") or source.find("efsmi")
    has_file = any(re.match(r"(nvidia|gcu)\d+\Z", name) for name in source.names("/dev"))
    return bool(has_tool or has_file or cards_of(source, (*NVIDIA, *ENFLAME)))
