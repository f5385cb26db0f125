"""Read the output of nvidia-smi: --query-gpu and --query-compute-apps as CSV with a header, topo -m, and nvlink -e."""

from __future__ import annotations

import re

from orchestrator.node.vendor.readings import add_card, bus_id, complete_lines, number, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple, TypedDict

    from orchestrator.node.vendor.readings import CardReading, CardReadings

    class ComputeProcess(TypedDict, total=False):
        """A process with a compute context. The driver hides the name and memory of another user's process."""

        pid: int
        name: Optional[str]
        gpu: Optional[str]
        memory_mib: Optional[float]

    class ComputeProcesses(TypedDict):
        """The rows that can be read; `faults` are the unread."""

        processes: List[ComputeProcess]
        faults: List[str]

    class NvlinkErrors(TypedDict):
        """The error counters by GPU (its UUID), name of the counter, and link; none for a GPU without NVLink."""

        gpus: Dict[str, Dict[str, Dict[str, int]]]
        faults: List[str]

    class Topology(TypedDict):
        """
        The matrix of topo -m: `links` by device and device, such as links["GPU0"]["mlx5_0"] == "PIX".

        NICs have the names of the legend. `cpus` and `numa` are the CPU list and the NUMA node of a GPU, where they are printed.
        """

        links: Dict[str, Dict[str, str]]
        cpus: Dict[str, str]
        numa: Dict[str, int]
        faults: List[str]


TOOL = "nvidia-smi"
# The key of a card by the field of --query-gpu. Older drivers know the last one only by its other name.
FIELDS = {
    "index": "index",
    "uuid": "uuid",
    "name": "name",
    "pci.bus_id": "bus_id",
    "driver_version": "driver",
    "memory.total": "memory_total_mib",
    "memory.used": "memory_used_mib",
    "utilization.gpu": "utilization_percent",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "pstate": "state",
    "mig.mode.current": "mig",
    "compute_mode": "compute_mode",
    "persistence_mode": "persistence",
    "ecc.mode.current": "ecc",
    "ecc.errors.uncorrected.volatile.total": "uncorrected_errors",
    "pcie.link.gen.current": "link_generation",
    "pcie.link.gen.max": "link_generation_max",
    "pcie.link.width.current": "link_width",
    "pcie.link.width.max": "link_width_max",
    "clocks_event_reasons.active": "throttle_mask",
}
OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
NEW_NAMES = {old: new for new, old in OLD_NAMES.items()}
# The keys whose values are texts; all others are numbers.
TEXTS = frozenset(("uuid", "name", "driver", "state", "mig", "compute_mode", "persistence", "ecc"))
NOT_AVAILABLE = frozenset(("", "N/A", "[N/A]", "[Not Supported]", "Not Supported", "[Not Available]"))
MISTAKES = re.compile(r"err!|error|requires reset|unknown|insufficient|invalid|lost", re.IGNORECASE)
UNITS = frozenset(("%", "MiB", "W", "MHz", "C"))
MAX_CARDS = 256
KEYS = frozenset(("index", "pid"))  # a header has one of them
FIELD = re.compile(r"[a-z][a-z0-9_.]*\Z")
INVALID_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field to query')
MASK = re.compile(r"0x[0-9a-f]{1,16}\Z", re.IGNORECASE | re.ASCII)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
LINK = re.compile(r"X|NV\d{1,3}|NVB|C2C|PIX|PXB|PHB|NODE|SYS", re.ASCII)
DEVICE = re.compile(r"[A-Za-z][\w.-]{0,31}\Z", re.ASCII)
GPU = re.compile(r"GPU\d{1,3}\Z", re.ASCII)
NUMA_NODE = re.compile(r"\d{1,4}\Z", re.ASCII)
CPU_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*\Z", re.ASCII)
NIC = re.compile(r"NIC\d{1,3}\Z", re.ASCII)
LEGEND = re.compile(r"\s*(NIC\d{1,3}):\s+(\S+)\s*\Z", re.ASCII)
GPU_TITLE = re.compile(r"GPU \d{1,3}: .*\(UUID: (GPU-[0-9a-f-]{8,40})\)\s*\Z", re.ASCII)
COUNTER = re.compile(r"\s+Link (\d{1,2}): ([A-Z][A-Za-z ]+):\s+(\d{1,20})\s*\Z", re.ASCII)
# The first line: up to NVLink 4. Other counters of NVLink 5 are traffic, or corrected errors, which a sound link has.
ERROR_COUNTERS = frozenset(
    (
        *("Replay Errors", "Recovery Errors", "CRC Errors"),
        *("Malformed packet Errors", "Buffer overrun Errors", "Rx Errors", "Rx remote Errors", "Rx General Errors"),
        *("Local link integrity Errors", "Effective Errors", "Link recovery failed events"),
    )
)
AFFINITY = re.compile(r"(CPU Affinity)(\s+NUMA Affinity)?(\s+GPU NUMA ID)?\s*\Z")


def query_gpu(fields: Sequence[str] = tuple(FIELDS)) -> List[str]:
    """The command whose output `parse_gpus` reads."""
    return [TOOL, f"--query-gpu={','.join(fields)}", "--format=csv,nounits"]


def query_compute_apps() -> List[str]:
    """The command whose output `parse_compute_apps` reads."""
    return [TOOL, "--query-compute-apps=pid,process_name,gpu_uuid,used_memory", "--format=csv,nounits"]


def known_fields(fields: Sequence[str], output: str) -> List[str]:
    """The fields for another query, after one that the driver refused: with the old name of an unknown field, or without it."""
    refused = set(INVALID_FIELD.findall(output))
    return [
        OLD_NAMES.get(field, field) if field in refused else field
        for field in fields
        if field not in refused - OLD_NAMES.keys()
    ]


def rows(text: str) -> Tuple[Optional[List[str]], List[List[str]], List[str]]:
    """
    The header, the rows with as many values, and all other lines, of CSV.

    A comma in a process's name does not separate values.
    """
    lines = [line for line in complete_lines(text) if line.strip()]
    header = None
    for line in lines:
        columns = [cell.strip().partition(" [")[0] for cell in line.split(",")]
        if len(set(columns)) == len(columns) and set(columns) & KEYS and all(map(FIELD.match, columns)):
            header = columns
            lines.remove(line)
            break
    if header is None:
        return None, [], lines
    found, unread = [], []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        extra = len(cells) - len(header)
        if extra > 0 and "process_name" in header:
            at = header.index("process_name")
            cells[at : at + extra + 1] = [", ".join(cells[at : at + extra + 1])]
        if len(cells) == len(header):
            found.append(cells)
        else:
            unread.append(line)
    return header, found, unread


def without_unit(text: str) -> str:
    value, _, unit = text.rpartition(" ")
    return value if unit in UNITS else text


def parse_gpus(text: str) -> CardReadings:
    """Read --query-gpu, with the header and with or without units; `driver` is None if the cards report different ones."""
    header, found, unread = rows(text)
    cards: List[CardReading] = []
    faults = [f"not a row: {shown(line)}" for line in unread] + ([] if header else ["no header of a query"])
    for cells in found:
        values = dict(zip([NEW_NAMES.get(name, name) for name in header or ()], cells))
        index = number(values.get("index", ""))
        if index is None or not index.is_integer() or index >= MAX_CARDS:
            faults.append(f"a row without the index of a card: {shown(', '.join(cells))}")
            continue
        card: CardReading = {"index": int(index), "values": values}
        unreadable = []
        for field, value in values.items():
            if field != "index" and field in FIELDS:
                card[FIELDS[field]], is_readable = value_of(FIELDS[field], value)  # type: ignore[literal-required]
                unreadable += [] if is_readable else [f"{field} {shown(value)}"]
        if unreadable:
            faults.append(f"card {int(index)}: {', '.join(unreadable)}")
        add_card(cards, card, faults)
    drivers = {card.get("driver") for card in cards}
    return {"cards": cards, "version": None, "driver": drivers.pop() if len(drivers) == 1 else None, "faults": faults}


def value_of(key: str, text: str) -> Tuple[object, bool]:
    """The value of a card, None if it is not available; and False if it cannot be read."""
    value: object = None
    if text in NOT_AVAILABLE:
        return None, True
    if MISTAKES.search(text) or "\ufffd" in text or not text.isprintable():
        return None, False
    if key in TEXTS:
        value = text
    elif key == "bus_id":
        value = bus_id(text)
    elif key == "throttle_mask":
        value = int(text, 16) if MASK.match(text) else None
    else:
        value = number(without_unit(text))
        if key == "utilization_percent" and value is not None and value > 100:  # noqa: PLR2004  per cent
            value = None
    return value, value is not None


def parse_compute_apps(text: str) -> ComputeProcesses:
    """Read --query-compute-apps, with the header."""
    columns = {"pid": "pid", "process_name": "name", "name": "name", "gpu_uuid": "gpu"}
    columns.update(used_memory="memory_mib", used_gpu_memory="memory_mib")  # the first is what newer drivers print
    header, found, unread = rows(text)
    faults = [f"not a row: {shown(line)}" for line in unread] + ([] if header else ["no header of a query"])
    processes: List[ComputeProcess] = []
    for cells in found:
        values = dict(zip([columns.get(name, name) for name in header or ()], cells))
        pid = values.get("pid", "")
        if not (pid.isdigit() and pid.isascii() and len(pid) <= 10):  # noqa: PLR2004  32 bits
            faults.append(f"a row without a process: {shown(', '.join(cells))}")
            continue
        process: ComputeProcess = {"pid": int(pid)}
        if "name" in values:
            process["name"] = None if values["name"].startswith("[") else values["name"]
        if "gpu" in values:
            process["gpu"] = None if values["gpu"] in NOT_AVAILABLE else values["gpu"]
        if "memory_mib" in values:
            process["memory_mib"] = number(without_unit(values["memory_mib"]))
        processes.append(process)
    return {"processes": processes, "faults": faults}


def query_nvlink_errors() -> List[str]:
    """The command whose output `parse_nvlink_errors` reads."""
    return [TOOL, "nvlink", "-e"]


def parse_nvlink_errors(text: str) -> NvlinkErrors:
    """Read nvlink -e: a title for each GPU, then a line for each counter of a link. Values such as N/A are left out."""
    gpus: Dict[str, Dict[str, Dict[str, int]]] = {}
    faults: List[str] = []
    contradictory = set()
    uuid = None
    for line in complete_lines(text):
        title, counter = GPU_TITLE.match(line), COUNTER.match(line)
        if title:
            uuid = title.group(1)
            gpus.setdefault(uuid, {})
        elif line and not line[0].isspace():
            uuid = None  # the counters after it are not those of the GPU before
            faults.append(f"not the title of a GPU: {shown(line)}")
        elif counter and counter.group(2) in ERROR_COUNTERS and uuid is not None:
            link, name, count = counter.groups()
            links = gpus[uuid].setdefault(name, {})
            if link in links:
                contradictory.add(uuid)
            links[link] = int(count)
    for name in contradictory:
        del gpus[name]
        faults.append(f"{name} has a counter twice")
    return {"gpus": gpus, "faults": faults}


def parse_topology(text: str) -> Topology:
    """Read topo -m of any driver: with or without ANSI underline, NIC legend, and the columns on NUMA."""
    result: Topology = {"links": {}, "cpus": {}, "numa": {}, "faults": []}
    lines = complete_lines(ANSI.sub("", text))
    legend = {found.group(1): found.group(2) for found in map(LEGEND.match, lines) if found}
    # a row has an X, the link of a device to itself; the header has none
    header = next((line for line in lines if GPU.match((line.split() or [""])[0]) and "X" not in line.split()), None)
    if header is None:
        result["faults"].append("no header of a matrix")
        return result
    affinity = AFFINITY.search(header)
    columns = header[: affinity.start()].split() if affinity else header.split()
    names = [legend.get(name, name) for name in columns]
    if len(set(names)) < len(names) or not all(map(DEVICE.match, names)):
        result["faults"].append(f"not the header of a matrix: {shown(header)}")
        return result
    unnamed = [name for name in names if NIC.match(name)]
    if unnamed:
        result["faults"].append(f"no legend for {', '.join(unnamed)}")
    width = sum(group is not None for group in affinity.groups()) if affinity else 0
    row_counts: Dict[str, int] = {}
    for line in lines:
        cells = line.split()
        if line is header or not cells or cells[0] not in columns:
            continue
        name = legend.get(cells[0], cells[0])
        row_counts[name] = row_counts.get(name, 0) + 1
        links, rest = cells[1 : 1 + len(names)], cells[1 + len(names) :]
        is_whole = len(links) == len(names) and all(map(LINK.fullmatch, links))
        if is_whole and links.count("X") == 1 and links[names.index(name)] == "X":
            result["links"][name] = dict(zip(names, links))
            if GPU.match(name):
                read_affinity(result, name, rest, width)
    for name in [name for name, count in row_counts.items() if count > 1]:  # neither of the rows can be trusted
        result["links"].pop(name, None)
        result["cpus"].pop(name, None)
        result["numa"].pop(name, None)
    missing = [name for name in names if name not in result["links"]]
    if missing:
        result["faults"].append(f"no row, or none that can be read: {', '.join(missing)}")
    drop_contradictions(result)
    return result


def read_affinity(result: Topology, name: str, cells: Sequence[str], width: int) -> None:
    """Add the CPU list and the NUMA node of a GPU, if the row has the `width` values that follow the links."""
    if len(cells) != width:  # empty columns, as in some virtual machines; or two columns without a space between them
        result["faults"].append(f"{name}: no CPU and NUMA affinity that can be read: {shown(' '.join(cells))}")
        return
    if width and CPU_LIST.match(cells[0]):
        result["cpus"][name] = cells[0]
    if width > 1 and NUMA_NODE.match(cells[1]):
        result["numa"][name] = int(cells[1])


def drop_contradictions(result: Topology) -> None:
    """Drop the links of two devices whose rows differ about them: one of the rows is wrong."""
    links = result["links"]
    pairs = [(a, b) for a in links for b in links[a] if a < b and b in links and links[a][b] != links[b][a]]
    for a, b in pairs:
        result["faults"].append(f"{a} to {b} is {links[a].pop(b)}, and the reverse is {links[b].pop(a)}")
