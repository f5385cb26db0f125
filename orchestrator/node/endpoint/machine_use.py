"""The use of a node's memory, disks and RDMA ports now, from /proc, /sys and the file systems; nothing is started."""

from __future__ import annotations

import os
import time

from orchestrator.node.system.fast_stdlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional

    from orchestrator.node.protocol.agents import MachineBody, PortBody, SpaceBody

INFINIBAND = "/sys/class/infiniband"
WORD_BYTES = 4  # port_rcv_data and port_xmit_data count words of four bytes
ERRORS = ("symbol_error", "link_downed", "port_rcv_errors", "port_xmit_discards", "local_link_integrity_errors")
KIB = 1024


def machine_use(folder: str, proc: str = "/proc", infiniband: str = INFINIBAND, shm: str = "/dev/shm") -> MachineBody:  # noqa: S108  the kernel's
    """The use of the machine of a node folder; a value that cannot be read is None."""
    memory = memory_bytes(proc)
    return {
        "monotonic_s": time.monotonic(),
        "memory_total": memory.get("MemTotal"),
        "memory_available": memory.get("MemAvailable"),
        "disk": space(folder),
        "shm": space(shm),
        "ports": list(ports(infiniband)),
    }


def memory_bytes(proc: str) -> Dict[str, int]:
    with suppress(OSError, ValueError), open(os.path.join(proc, "meminfo"), encoding="ascii") as file:
        lines = (line.split(":") for line in file)
        return {name: int(value.split()[0]) * KIB for name, value in lines}
    return {}


def space(path: str) -> Optional[SpaceBody]:
    """The size and the free bytes of the file system of a path, for a user without privileges."""
    with suppress(OSError):
        found = os.statvfs(path)
        return {"total": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}
    return None


def ports(folder: str) -> Iterator[PortBody]:
    """The counters of each active RDMA port; none where sysfs has no such devices, or hides them."""
    for device in names(folder):
        for port in names(os.path.join(folder, device, "ports")):
            path = os.path.join(folder, device, "ports", port)
            received, sent = (counter(path, f"port_{way}_data") for way in ("rcv", "xmit"))
            if "ACTIVE" in text(os.path.join(path, "state")) and received is not None and sent is not None:
                errors = sum(counter(path, name) or 0 for name in ERRORS)
                yield {
                    "name": f"{device}:{port}",
                    "received": received * WORD_BYTES,
                    "sent": sent * WORD_BYTES,
                    "errors": errors,
                }


def names(folder: str) -> List[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def counter(port: str, name: str) -> Optional[int]:
    found = text(os.path.join(port, "counters", name))
    return int(found) if found.isdecimal() else None


def text(path: str) -> str:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read().strip()
    return ""
