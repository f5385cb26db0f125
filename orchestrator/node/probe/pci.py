"""PCI addresses, paths and NUMA nodes of devices, from sysfs. Devices with a long common path are near each other."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from orchestrator.node.probe.source import Source

ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
DEVICES = "/sys/devices/"


def address_in(path: Optional[str]) -> Optional[str]:
    """The address of the PCI device that a resolved path below /sys/devices leads to; None if it is no PCI device."""
    found = ADDRESS.findall(path or "")
    return found[-1] if found else None


def path_of(source: Source, address: str) -> Optional[str]:
    """The path below /sys/devices of a PCI device, over all bridges and switches above it."""
    return below_devices(source.resolve(f"/sys/bus/pci/devices/{address}"))


def below_devices(path: Optional[str]) -> Optional[str]:
    return path[len(DEVICES) :] if path and path.startswith(DEVICES) else None


def numa_of(source: Source, device: str) -> Optional[int]:
    """The NUMA node of a device folder; None if the firmware gives none (-1)."""
    node = source.number(f"{device}/numa_node")
    return node if node is not None and node >= 0 else None
