"""RDMA devices from sysfs, as NCCL reads them: ports, GID tables, error counters, and the character device of each."""

from __future__ import annotations

import os
import re

from orchestrator.node.probe.pci import address_in, below_devices, numa_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

    from orchestrator.node.facts import Gid, Hca, HcaPort
    from orchestrator.node.probe.source import Source

CLASS = "/sys/class/infiniband"
VERBS = "/sys/class/infiniband_verbs"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
GID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}\Z")
RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec")
# Counters of errors: those of the InfiniBand architecture, and those of mlx5 for RoCE.
COUNTERS = {
    "counters": (
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "port_rcv_errors",
        "port_rcv_remote_physical_errors",
        "port_xmit_discards",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
        "VL15_dropped",
    ),
    "hw_counters": (
        "out_of_sequence",
        "packet_seq_err",
        "local_ack_timeout_err",
        "rnr_nak_retry_err",
        "rx_icrc_encapsulated",
        "roce_slow_restart",
    ),
}


def hcas(source: Source) -> List[Hca]:
    # the character device of each RDMA device, such as uverbs0
    found = {source.text(f"{VERBS}/{name}/ibdev"): name for name in source.names(VERBS) if name.startswith("uverbs")}
    verbs = {name: device for name, device in found.items() if name}
    return [hca(source, name, verbs.get(name)) for name in source.names(CLASS)]


def hca(source: Source, name: str, verbs: Optional[str]) -> Hca:
    folder = f"{CLASS}/{name}"
    device = source.resolve(f"{folder}/device")
    return {
        "name": name,
        "node_type": named(source.text(f"{folder}/node_type")),
        "physical_function": address_in(source.resolve(f"{folder}/device/physfn")),
        "pci": address_in(device),
        "pci_path": below_devices(device),
        "numa": numa_of(source, f"{folder}/device"),
        "board": source.text(f"{folder}/board_id") or None,
        "firmware": source.text(f"{folder}/fw_ver") or None,
        "usable": verbs is not None and os.access(source.path(f"/dev/infiniband/{verbs}"), os.R_OK | os.W_OK),
        "interfaces": source.names(f"{folder}/device/net"),
        "ports": [
            port(source, f"{folder}/ports/{number}", int(number)) for number in numbers(source, f"{folder}/ports")
        ],
    }


def numbers(source: Source, folder: str) -> List[str]:
    """The names in a folder that are numbers, ascending."""
    return [name for name in source.names(folder) if name.isdigit()]


def port(source: Source, folder: str, number: int) -> HcaPort:
    lid = source.text(f"{folder}/lid")
    return {
        "port": number,
        "state": named(source.text(f"{folder}/state")),
        "physical_state": named(source.text(f"{folder}/phys_state")),
        "link_layer": source.text(f"{folder}/link_layer") or None,
        "rate": rate(source, f"{folder}/rate"),
        "lid": int(lid, 16) if lid and re.match(r"0x[0-9a-f]{1,8}\Z", lid) else None,
        "gids": gids(source, folder),
        "counters": counters(source, folder),
    }


def named(text: Optional[str]) -> Optional[str]:
    """The name in a state such as `4: ACTIVE`."""
    number, colon, name = (text or "").partition(":")
    return name.strip() or None if colon and number.isdigit() else None


def rate(source: Source, path: str) -> Optional[float]:
    """Gb/s of a rate such as `400 Gb/sec (4X NDR)`; None if the port is down, where drivers print the lowest or no rate."""
    text = source.text(path)
    found = RATE.match(text or "")
    if text and not found:
        source.missing[path] = f"not a rate: {text!r:.80}"
    return float(found.group(1)) if found else None


def gids(source: Source, folder: str) -> List[Gid]:
    """The used slots of the GID table."""
    table: List[Gid] = []
    for index in numbers(source, f"{folder}/gids"):
        gid = source.text(f"{folder}/gids/{index}")
        if gid is None or gid == NO_GID:
            continue
        if not GID.match(gid):
            source.missing[f"{folder}/gids/{index}"] = f"not a GID: {gid!r:.80}"
            continue
        kind = source.text(f"{folder}/gid_attrs/types/{index}") or None
        interface = source.text(f"{folder}/gid_attrs/ndevs/{index}") or None
        table.append({"index": int(index), "gid": gid, "type": kind, "interface": interface})
    return table


def counters(source: Source, folder: str) -> Dict[str, int]:
    """The error counters; what is missing of them is not recorded under `hcas`, because no choice of a network depends on it."""
    found: Dict[str, int] = {}
    for group, names in COUNTERS.items():
        for name in names if source.exists(f"{folder}/{group}") else ():
            path = f"{folder}/{group}/{name}"
            value = source.number(path)
            if value is not None:
                found[name] = value
            if path in source.missing:
                source.missing[f"counters.{path}"] = source.missing.pop(path)
    return found
