"""Network interfaces from sysfs, and their addresses from the kernel (netlink): no tool prints them in every container."""

from __future__ import annotations

import os
import re

from orchestrator.node.probe.pci import address_in, numa_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Dict, List, Optional, Tuple

    from orchestrator.node.facts import Address, Interface
    from orchestrator.node.probe.source import Source

CLASS = "/sys/class/net"
TYPES = {1: "ethernet", 32: "infiniband", 772: "loopback"}  # linux/if_arp.h
IFF_UP = 1
MB_PER_GB = 1000


def interfaces(source: Source) -> List[Interface]:
    """The interfaces, by name, without their addresses, which another step reads."""
    names = [name for name in source.names(CLASS) if source.exists(f"{CLASS}/{name}/ifindex")]  # not bonding_masters
    return [interface(source, name) for name in names]


def interface(source: Source, name: str) -> Interface:
    folder = f"{CLASS}/{name}"
    device = source.resolve(f"{folder}/device")
    speed = source.number(f"{folder}/speed")
    master = source.resolve(f"{folder}/master")
    hcas = source.names(f"{folder}/device/infiniband")
    return {
        "name": name,
        "kind": kind(source, folder, device),
        "up": is_up(source, folder),
        "mtu": source.number(f"{folder}/mtu"),
        "speed": speed / MB_PER_GB if speed is not None and speed > 0 else None,
        "addresses": [],
        "pci": address_in(device),
        "numa": numa_of(source, f"{folder}/device") if device else None,
        "master": os.path.basename(master) if master else None,
        "hca": hcas[0] if len(hcas) == 1 else None,
    }


def kind(source: Source, folder: str, device: Optional[str]) -> str:
    """The kind of an interface; `virtual` if it has no device, as veth or tun."""
    for name in ("bonding", "bridge"):
        if source.exists(f"{folder}/{name}"):
            return {"bonding": "bond"}.get(name, name)
    if "DEVTYPE=vlan" in (source.text(f"{folder}/uevent") or "").splitlines():
        return "vlan"
    base = TYPES.get(source.number(f"{folder}/type") or 0, "virtual")
    return "virtual" if base == "ethernet" and device is None else base


def is_up(source: Source, folder: str) -> bool:
    """True if it can carry packets; drivers that do not report that, as of the loopback, count as they are configured."""
    state = source.text(f"{folder}/operstate")
    flags = source.text(f"{folder}/flags") or ""
    configured = bool(int(flags, 16) & IFF_UP) if re.match(r"0x[0-9a-f]{1,8}\Z", flags) else False
    return state == "up" or (state == "unknown" and configured)


RTM_NEWADDR, RTM_GETADDR, NLMSG_ERROR, NLMSG_DONE = 20, 22, 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
IFA_ADDRESS, IFA_LOCAL = 1, 2
HEADER, ADDRESS, ATTRIBUTE = "=IHHII", "=BBBBI", "=HH"
RECEIVE_BYTES = 1 << 16
ANSWER_S = 1.0


def kernel_addresses() -> Dict[str, List[Address]]:
    """The addresses of each interface of this network namespace, without IPv6 link-local ones."""
    import socket  # only this function needs it
    import struct

    body = struct.pack(ADDRESS, socket.AF_UNSPEC, 0, 0, 0, 0)
    size = struct.calcsize(HEADER) + len(body)
    request = struct.pack(HEADER, size, RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + body
    names = dict(socket.if_nameindex())
    found: Dict[str, List[Address]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(ANSWER_S)
        netlink.sendto(request, (0, 0))
        while True:
            for kind, message in messages(netlink.recv(RECEIVE_BYTES)):
                if kind in (NLMSG_DONE, NLMSG_ERROR):
                    return found
                entry = address_of(message) if kind == RTM_NEWADDR else None
                if entry is not None and entry[0] in names:
                    found.setdefault(names[entry[0]], []).append(entry[1])


def messages(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """Type and body of each netlink message."""
    import struct

    header = struct.calcsize(HEADER)
    while len(data) >= header:
        size, kind = struct.unpack_from("=IH", data)
        if not header <= size <= len(data):
            return
        yield kind, data[header:size]
        data = data[aligned(size) :]


def address_of(message: bytes) -> Optional[Tuple[int, Address]]:
    """Interface index and address of an RTM_NEWADDR message; None for an IPv6 link-local one."""
    import socket
    import struct

    family, prefix, _, _, index = struct.unpack_from(ADDRESS, message)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    values: Dict[int, bytes] = {}
    rest = message[struct.calcsize(ADDRESS) :]
    while len(rest) >= struct.calcsize(ATTRIBUTE):
        size, kind = struct.unpack_from(ATTRIBUTE, rest)
        if size < struct.calcsize(ATTRIBUTE):
            break
        values[kind] = rest[struct.calcsize(ATTRIBUTE) : size]
        rest = rest[aligned(size) :]
    raw = values.get(IFA_LOCAL, values.get(IFA_ADDRESS, b""))  # of a tunnel, IFA_ADDRESS is the other end
    if len(raw) != (4 if family == socket.AF_INET else 16):
        return None
    text = socket.inet_ntop(family, raw)
    return None if text.startswith("fe80:") else (index, {"address": text, "prefix": prefix})


def aligned(size: int) -> int:
    """The size with the padding to a multiple of 4 that follows in netlink."""
    return (size + 3) & ~3
