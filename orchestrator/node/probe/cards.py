"""Accelerator cards: by their vendors' tools, which give index, name and health, and by sysfs, which gives their place in the machine."""

from __future__ import annotations

import os
import re

from orchestrator.node.number_text import counted
from orchestrator.node.probe.pci import BUS, ENFLAME, NVIDIA, below_devices, cards_of, numa_of
from orchestrator.node.vendor import efsmi, nvidia_smi
from orchestrator.node.vendor.readings import bus_id, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional

    from orchestrator.node.facts import Card, CardProcess
    from orchestrator.node.probe.source import Source
    from orchestrator.node.vendor.readings import CardReading, CardReadings

    ByCard = Dict[str, List[CardProcess]]

PROC_GPUS = "/proc/driver/nvidia/gpus"
MIB = 1 << 20
ERRORS = tuple(
    f"ecc.errors.{kind}.{life}.total" for kind in ("corrected", "uncorrected") for life in ("volatile", "aggregate")
)
HEALTH = (*ERRORS, "clocks.sm", "temperature.memory", "vbios_version")
FIELDS = tuple(dict.fromkeys((*nvidia_smi.FIELDS, *HEALTH)))
TOOLS = {
    "cuda": (nvidia_smi.TOOL, "cards.nvidia", NVIDIA, "nvidia"),
    "gcu": (efsmi.TOOL, "cards.enflame", ENFLAME, "gcu"),
}
"""By kind: the tool that counts the cards, the fact that needs it, the vendor, and the prefix of the device files."""
COUNT = "cards.count"  # as in checks/cards.py
NOT_IN_CONTAINER = "{} is not in this container"
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
QUERIES = 3  # old drivers refuse unknown fields, one by one or all at once
REMAPPED = "gpu_uuid,remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"


def nvidia(source: Source) -> Dict[str, object]:
    """The NVIDIA GPUs, the version of their driver, and the CUDA version that it supports."""
    fields: Iterable[str] = FIELDS
    text: Optional[str] = None
    devices = cards_of(source, NVIDIA)
    for _ in range(QUERIES if source.find(nvidia_smi.TOOL) else 0):
        wanted = list(filter(None, fields))
        text = source.output(nvidia_smi.query_gpu(wanted))
        refused = nvidia_smi.known_fields(wanted, source.last_words)
        if text is not None or list(filter(None, refused)) == wanted:
            break
        source.tools.pop()
        fields = refused
    if source.find(nvidia_smi.TOOL) is None:
        return {"cards": uncounted(source, "cuda", without_tool(source)), "driver": driver_version(source)}
    if text is None:
        if devices:
            source.missing["cards.nvidia"] = f"nvidia-smi: {source.tools[-1]['error']}"
        return {"cards": without_tool(source), "driver": driver_version(source)}
    read = nvidia_smi.parse_gpus(text)
    note_faults(source, nvidia_smi.TOOL, read["faults"])
    return {"cards": cards_read(source, "cuda", read), "driver": read["driver"] or driver_version(source)}


def note_faults(source: Source, tool: str, faults: List[str]) -> None:
    if faults:
        source.tools[-1]["error"] = "; ".join(faults)[:500]
        source.missing[f"cards.{tool}"] = "; ".join(faults)[:500]


def driver_version(source: Source) -> Optional[str]:
    """The version of NVIDIA's kernel module, which also a container without the tool sees."""
    return source.text("/sys/module/nvidia/version") or None


def enflame(source: Source) -> Dict[str, object]:
    """The GCUs, by efsmi -q, or by its table where that prints none; and the version of their driver."""
    devices = cards_of(source, ENFLAME)
    if source.find(efsmi.TOOL) is None:
        return {"cards": uncounted(source, "gcu", []), "driver": None}
    read = read_efsmi(source)
    if read is None or (not read["cards"] and devices):
        source.missing["cards.enflame"] = f"efsmi: {source.tools[-1]['error']}"
    if read is None:
        return {"cards": [], "driver": None}
    cards = cards_read(source, "gcu", read)
    users = device_users(source, r"/dev/gcu(\d+)\Z")
    for card in cards:
        card["processes"] = users.get(str(card["index"]), [])
    return {"cards": cards, "driver": read["driver"]}


def read_efsmi(source: Source) -> Optional[CardReadings]:
    for argv, parse in ((efsmi.query(), efsmi.parse_query), (efsmi.table(), efsmi.parse_table)):
        text = source.output(argv)
        if text is not None:
            read = parse(text)
            if read["cards"]:
                note_faults(source, efsmi.TOOL, read["faults"])
                return read
            source.tools[-1]["error"] = "; ".join(read["faults"])[:500] or "no cards"
    return None


def cards_read(source: Source, kind: str, read: CardReadings) -> List[Card]:
    return [card_of(source, kind, card) for card in sorted(read["cards"], key=lambda card: card["index"])]


def card_of(source: Source, kind: str, read: CardReading) -> Card:
    """The card of a tool's reading; place and NUMA node are None if this machine shows no such device."""
    address, mig = read.get("bus_id"), read.get("mig")
    path = source.resolve(f"{BUS}/{address}") if address else None
    return {
        "kind": kind,
        "index": read["index"],
        "uuid": read.get("uuid") or read.get("serial"),
        "name": read.get("name"),
        "pci": address,
        "pci_path": below_devices(path),
        "numa": numa_of(source, f"{BUS}/{address}") if path else None,
        "memory_total": bytes_of(read.get("memory_total_mib")),
        "memory_used": bytes_of(read.get("memory_used_mib")),
        "utilization": read.get("utilization_percent"),
        "mig": {"Enabled": True, "Disabled": False}.get(mig) if mig else None,
        "processes": [],
        "health": health_of(read),
    }


def health_of(read: CardReading) -> Dict[str, str]:
    """The values that the tool prints, by its names; also `Health` of efsmi -q, and the readable ones of the table of efsmi."""
    keys = ("state", "ecc", "temperature_c", "power_w")
    health = dict(read.get("values") or {key: str(read.get(key)) for key in keys if read.get(key) is not None})
    healthy = read.get("healthy")
    return health if healthy is None else {**health, "Health": str(healthy)}


def bytes_of(mib: Optional[float]) -> Optional[int]:
    return None if mib is None else int(mib * MIB)


def without_tool(source: Source) -> List[Card]:
    """The GPUs that the driver shows this container, in the order of nvidia-smi, which is that of the bus."""
    found: List[Card] = []
    for name in sorted(source.names(PROC_GPUS)):
        text = source.text(f"{PROC_GPUS}/{name}/information") or ""
        values = dict(re.findall(r"^([\w /]+?):\s+(.*?)\s*$", text, re.MULTILINE))
        minor = values.get("Device Minor", "")
        if minor.isdigit() and source.exists(f"/dev/nvidia{minor}"):
            uuid = values.get("GPU UUID", "")
            reading: CardReading = {"index": len(found), "name": values.get("Model"), "bus_id": bus_id(name)}
            reading["uuid"] = None if "?" in uuid else uuid or None  # question marks until the card is initialised
            found.append(card_of(source, "cuda", reading))
    return found


def uncounted(source: Source, kind: str, shown: List[Card]) -> List[Card]:
    """
    The cards of a node without the tool that counts them: those that the driver has `shown`, else one per device file.

    `missing` has the reason for what is not known; under COUNT if even the number is not.
    """
    tool, fact, vendor, prefix = TOOLS[kind]
    devices = cards_of(source, vendor)
    files = [name for name in source.names("/dev") if name.startswith(prefix) and name[len(prefix) :].isdigit()]
    if not devices and not files and not shown:
        return []
    is_container = any(source.exists(path) for path in CONTAINER_FILES)
    absent = NOT_IN_CONTAINER.format(tool) if is_container else f"{tool}: not found"
    source.tools.append({"name": tool, "seconds": 0.0, "error": absent})
    if shown or files:
        source.missing[fact] = absent if shown else f"{absent}; the cards are counted by /dev/{prefix}*"
        addresses: List[Optional[str]] = [*devices] if len(devices) == len(files) else [None] * len(files)
        by_files = [
            card_of(source, kind, {"index": index, "bus_id": address}) for index, address in enumerate(addresses)
        ]
        return shown or by_files
    # CUDA uses no card without its device file; for a GCU this is not verified
    name = fact if kind == "cuda" else f"{COUNT}.{kind}"
    source.missing[name] = f"{absent}; {counted(len(devices), 'card')} on the PCI bus, and there is no /dev/{prefix}*"
    return []


def processes(source: Source) -> ByCard:
    """The processes with a compute context, by the UUID of their GPU."""
    if source.find(nvidia_smi.TOOL) is None:
        return {}
    text = source.output(nvidia_smi.query_compute_apps())
    if text is None:
        source.missing["cards.processes"] = f"nvidia-smi: {source.tools[-1]['error']}"
        return {}
    read = nvidia_smi.parse_compute_apps(text)
    note_faults(source, f"{nvidia_smi.TOOL}.processes", read["faults"])
    found: ByCard = {}
    for process in read["processes"]:
        name = os.path.basename((process.get("name") or "").split(" ")[0])
        entry = card_process(process["pid"], name, bytes_of(process.get("memory_mib")))
        found.setdefault(process.get("gpu") or "", []).append(entry)
    return found


def card_process(pid: int, name: str, memory: Optional[int]) -> CardProcess:
    """A process of a card; its name without arguments, which may hold secrets."""
    import pwd  # only Unix has it

    try:
        uid: Optional[int] = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip() or name
    except OSError:  # hidden from this user, of another container, or ended
        uid = None
    try:
        user = None if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return {"pid": pid, "name": name, "user": user, "memory": memory, "ours": uid == os.geteuid()}


def device_users(source: Source, pattern: str) -> ByCard:
    """The processes that have a device file open, as far as this user may see them, by the group of the pattern."""
    found: ByCard = {}
    for name in source.names("/proc"):
        if not name.isdigit():
            continue
        try:
            folder = source.path(f"/proc/{name}/fd")
            links = {os.readlink(f"{folder}/{descriptor}") for descriptor in os.listdir(folder)}
        except OSError:
            continue
        for match in filter(None, (re.match(pattern, link) for link in links)):
            found.setdefault(match.group(1), []).append(card_process(int(name), "", None))
    return found


def rows(source: Source) -> Dict[str, Dict[str, str]]:
    """The counters of replaced memory rows by the UUID of the GPU; older cards have none."""
    if source.find(nvidia_smi.TOOL) is None:
        return {}
    text = source.output([nvidia_smi.TOOL, f"--query-remapped-rows={REMAPPED}", "--format=csv,nounits"])
    lines = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines() if line.strip()]
    if not lines or "gpu_uuid" not in lines[0]:
        return {}
    found: Dict[str, Dict[str, str]] = {}
    for cells in lines[1:]:
        values = dict(zip(lines[0], cells))
        uuid = values.pop("gpu_uuid", "")
        if len(cells) == len(lines[0]) and uuid.startswith("GPU-"):
            found[uuid] = {
                name: value for name, value in values.items() if number(value) is not None or value.isalpha()
            }
    return found


def nvlink(source: Source) -> Dict[str, Dict[str, str]]:
    """The error counters of NVLink by the UUID of the GPU: of all its links together, and the links that have errors."""
    if source.find(nvidia_smi.TOOL) is None:
        return {}
    text = source.output(nvidia_smi.query_nvlink_errors())
    if text is None:
        source.missing["nvlink"] = f"nvidia-smi nvlink: {source.tools[-1]['error']}"
        return {}
    read = nvidia_smi.parse_nvlink_errors(text)
    if read["faults"]:
        source.missing["nvlink"] = "; ".join(read["faults"])[:500]
    found: Dict[str, Dict[str, str]] = {}
    for uuid, counters in read["gpus"].items():
        found[uuid] = {f"nvlink.{name}": str(sum(links.values())) for name, links in counters.items()}
        faulty = {link for links in counters.values() for link, count in links.items() if count}
        if faulty:
            found[uuid]["nvlink.links"] = ", ".join(sorted(faulty, key=int))
    return found


def topology(source: Source) -> Dict[str, Dict[str, str]]:
    if source.find(nvidia_smi.TOOL) is None:
        return {}
    text = source.output([nvidia_smi.TOOL, "topo", "-m"])
    if text is None:
        source.missing["topology"] = f"nvidia-smi topo: {source.tools[-1]['error']}"
        return {}
    read = nvidia_smi.parse_topology(text)
    if read["faults"]:
        source.missing["topology"] = "; ".join(read["faults"])[:500]
    return read["links"]
