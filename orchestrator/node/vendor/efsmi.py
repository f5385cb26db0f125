"""Read the output of efsmi, Enflame's tool: the table of a T20 or an S60, and the sections of efsmi -q."""

from __future__ import annotations

import re

from orchestrator.node.vendor.readings import add_card, bus_id, complete_lines, number, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from orchestrator.node.vendor.readings import CardReading, CardReadings

TOOL = "efsmi"
VERSIONS = re.compile(r"EFSMI:?\s+V?([\w.]+)\s+Driver Ver:\s+([\w.]+)\Z", re.ASCII)
# The two lines of the header. A table with other columns is not read.
HEADER_1 = re.compile(r"DEV\s+NAME\s*\|\s*(?:Boot )?FW VER\s*\|\s*BUS-ID\s+ECC\Z")
HEADER_2 = re.compile(
    r"TEMP\s+(?:DPM|Dpm|Lpm)\s+Pwr\(Usage/Cap\)\s*\|\s*Mem\s+(?:vGCU|GCU Virt)\s*\|\s*(?:DEV-Util|DUsed)\s+(UUID|SN)\Z"
)
FIRST_CELL = re.compile(r"(\d{1,3})\s+(\S.*)\Z", re.ASCII)
TEMPERATURE = r"(?:(\d{1,3})\s?(?:C|℃|°C)?|-|N/A)"
POWER = r"(?:([\d.]+)W\s*/?\s*([\d.]+)W|-|N/A)"
HEAT = re.compile(rf"{TEMPERATURE}\s+([A-Za-z]\w{{0,15}})\s+{POWER}\Z", re.ASCII)
MEMORY = re.compile(r"(\d{1,8})(G|MiB)\s+([A-Za-z]\w{0,15})\Z", re.ASCII)
LOAD = re.compile(r"(\d{1,3}(?:\.\d+)?)%\s+(\S+)\Z", re.ASCII)
DEVICE = re.compile(r"DEV ID (\d{1,3})\s*\Z", re.ASCII)
VALUE = re.compile(r"\s+(\S.*?)\s*:(?:\s+(.*?))?\s*\Z")
SECTION = re.compile(r"\s+(\S.*?)\s*\Z")
MAX_PERCENT = 100
MIB_PER_G = 1024
# The key of a card, and the unit, by section and key of efsmi -q. The last two are those of older versions.
NUMBERS = {
    ("Power Info", "Power Capa"): ("power_limit_w", "W"),
    ("Power Info", "Cur Power"): ("power_w", "W"),
    ("Device Mem Info", "Total Size"): ("memory_total_mib", "MiB"),
    ("Device Mem Info", "Used Size"): ("memory_used_mib", "MiB"),
    ("Temperature Info", "GCU Temp"): ("temperature_c", "C"),
    ("Device Usage Info", "GCU Usage"): ("utilization_percent", "%"),
    ("Link Info", "Max Link Speed"): ("link_generation_max", "Gen"),
    ("Link Info", "Cur Link Speed"): ("link_generation", "Gen"),
    ("Link Info", "Max Link Width"): ("link_width_max", "X"),
    ("Link Info", "Cur Link Width"): ("link_width", "X"),
    ("PCIe Info", "Max Link Speed"): ("link_generation_max", "Gen"),
    ("PCIe Info", "Cur Link Speed"): ("link_generation", "Gen"),
    ("PCIe Info", "Max Link Width"): ("link_width_max", "X"),
    ("PCIe Info", "Cur Link Width"): ("link_width", "X"),
    ("Device Mem Info", "Mem Size"): ("memory_total_mib", "MiB"),
    ("Device Mem Info", "Mem Usage"): ("memory_used_mib", "MiB"),
}
TEXTS = {
    ("Driver Info", "Ver"): "driver",
    ("Device Info", "Dev Name"): "name",
    ("Device Info", "Dev UUID"): "uuid",
    ("Device Info", "Dev SN"): "serial",
    ("Power Info", "Dpm Level"): "state",
    ("Power Info", "Lpm Level"): "state",
    ("ECC Mode", "Current"): "ecc",
    ("Device Mem Info", "Mem Ecc"): "ecc",
}
ADDRESS = ("Domain", "Bus", "Dev", "Func")
HEALTH = ("Device Info", "Health")
RMA = ("RMA Info", "Flags")
TWICE = "\0"  # the value of a key that a section has twice
QUANTITY = re.compile(r"(Gen|X)?([\d.]+)\s?(\S*)\Z", re.ASCII)
CELSIUS = {"℃": "C", "°C": "C"}
COUNT = re.compile(r"\d{1,9}\Z", re.ASCII)
WORD = re.compile(r"[A-Za-z]\w{0,15}\Z", re.ASCII)
ROW_CELLS = 3
NONE = frozenset(("", "-", "N/A"))


def table() -> List[str]:
    """The command whose output `parse_table` reads."""
    return [TOOL]


def query() -> List[str]:
    """The command whose output `parse_query` reads."""
    return [TOOL, "-q"]


def parse_table(text: str) -> CardReadings:
    """Read the table that efsmi prints without options; it does not have the used memory."""
    result: CardReadings = {"cards": [], "version": None, "driver": None, "faults": []}
    lines = [line.strip().strip("|*").strip() for line in complete_lines(text)]
    for found in filter(None, map(VERSIONS.match, lines)):
        result["version"], result["driver"] = found.groups()
    header = next(
        (at for at, line in enumerate(lines[1:], 1) if HEADER_2.match(line) and HEADER_1.match(lines[at - 1])), None
    )
    if header is None:
        words = next((line for line in lines if line.strip("-+= ")), "")
        result["faults"].append(f"no header of a table of efsmi: {shown(words)}")
        return result
    serial = "uuid" if lines[header].endswith("UUID") else "serial"
    card: Optional[CardReading] = None  # of a first row whose second row is still to come
    for line in lines[header + 1 :]:
        cells = [cell.strip() for cell in line.split("|")]
        started = first_row(cells)
        if not line.strip("-+="):
            continue
        if card is not None and started is None and len(cells) == ROW_CELLS:
            add_second_row(card, cells, serial, result["faults"])
            add_card(result["cards"], card, result["faults"])
        elif card is not None or started is None:
            result["faults"].append(f"not a row of a card: {shown(line)}")
        if card is not None and started is not None:
            result["faults"].append(f"card {card['index']} has no second row")
        card = started
    if card is not None:
        result["faults"].append(f"card {card['index']} has no second row")
    return result


def first_row(cells: List[str]) -> Optional[CardReading]:
    """Read index, name, firmware, bus address and ECC; None if it is another row."""
    found = FIRST_CELL.match(cells[0])
    address, _, ecc = cells[-1].partition(" ")
    if len(cells) != ROW_CELLS or found is None or bus_id(address) is None or not WORD.match(ecc.strip()):
        return None
    index, name = found.groups()
    return {"index": int(index), "name": name, "firmware": cells[1], "bus_id": bus_id(address), "ecc": ecc.strip()}


def add_second_row(card: CardReading, cells: List[str], serial: str, faults: List[str]) -> None:
    """Add temperature, state, power, memory, load and serial number; None for those that cannot be read."""
    heat, memory, load = HEAT.match(cells[0]), MEMORY.match(cells[1]), LOAD.match(cells[2])
    temperature, state, power, limit = heat.groups() if heat else (None, None, None, None)
    card.update({"temperature_c": optional(temperature), "state": state})
    card.update({"power_w": optional(power), "power_limit_w": optional(limit)})
    size, unit, virtual = memory.groups() if memory else (None, None, None)
    total = optional(size)
    card.update({"memory_total_mib": total and total * (MIB_PER_G if unit == "G" else 1), "virtual": virtual})
    percent, name = load.groups() if load else (None, None)
    utilization = optional(percent)
    is_valid = utilization is None or utilization <= MAX_PERCENT
    card["utilization_percent"] = utilization if is_valid else None
    card[serial] = name  # type: ignore[literal-required]
    for cell, found in zip(cells, (heat, memory, load and is_valid)):
        if not found:
            faults.append(f"card {card['index']}: {shown(cell)}")


def optional(text: Optional[str]) -> Optional[float]:
    return None if text is None else number(text)


def parse_query(text: str) -> CardReadings:
    """Read efsmi -q. Sections and keys that are not in the tables above are ignored."""
    result: CardReadings = {"cards": [], "version": None, "driver": None, "faults": []}
    values: Dict[Tuple[str, str], str] = {}
    device: Optional[int] = None
    section = ""
    for line in [*complete_lines(text), None]:
        start = DEVICE.match(line) if line is not None else None
        if device is not None and (line is None or start is not None):
            add_card(result["cards"], card_of(device, values, result["faults"]), result["faults"])
        if line is None:
            break
        if start is not None:
            device, section, values = int(start.group(1)), "", {}
            continue
        found = VALUE.match(line)
        if found is not None:
            key = (section, found.group(1))
            values[key] = TWICE if key in values else found.group(2) or ""
        elif SECTION.match(line):
            section = line.strip()
    if device is None:
        words = next((line for line in complete_lines(text) if line.strip("- ")), "")
        result["faults"].append(f"no device of efsmi -q: {shown(words)}")
    drivers = {card.get("driver") for card in result["cards"]}
    result["driver"] = drivers.pop() if len(drivers) == 1 else None
    return result


def card_of(device: int, values: Dict[Tuple[str, str], str], faults: List[str]) -> CardReading:
    """The card that the sections of one device describe."""
    printed = {"/".join(key): value for key, value in values.items() if value != TWICE}
    card: CardReading = {"index": device, "values": printed}
    unreadable = [f"{key[1]} is printed twice" for key, value in values.items() if value == TWICE]
    for key, name in TEXTS.items():
        text = values.get(key, TWICE)
        if text != TWICE:
            is_text = text.isprintable() and "\ufffd" not in text
            card[name] = text if is_text and text not in NONE else None  # type: ignore[literal-required]
            unreadable += [] if is_text else [f"{key[1]} {shown(text)}"]
    for key, (name, unit) in NUMBERS.items():
        text = values.get(key, TWICE)
        if text != TWICE:
            value = quantity(text, unit)
            card[name] = value  # type: ignore[literal-required]
            unreadable += [f"{key[1]} {shown(text)}"] if value is None and text not in NONE else []
    address = [values.get(("PCIe Info", part), "") for part in ADDRESS]
    if any(address):
        card["bus_id"] = bus_id("{}:{}:{}.{}".format(*address))
        unreadable += [f"PCIe Info {shown(':'.join(address))}"] if card["bus_id"] is None else []
    if HEALTH in values:
        card["healthy"] = {"True": True, "False": False}.get(values[HEALTH])
        unreadable += [f"Health {shown(values[HEALTH])}"] if card["healthy"] is None else []
    errors = {
        key[1]: value for key, value in values.items() if key[0] == "Error Details" and value not in (*NONE, "0", TWICE)
    }
    card["errors"] = {name: int(value) for name, value in errors.items() if COUNT.match(value)}
    unreadable += [f"{name} {shown(value)}" for name, value in errors.items() if not COUNT.match(value)]
    if values.get(RMA, "False") == "True":
        card["errors"]["RMA"] = 1
    if unreadable:
        faults.append(f"card {device}: {', '.join(unreadable)}")
    return card


def quantity(text: str, unit: str) -> Optional[float]:
    """The number in a value such as "300 W", "35 ℃", "Gen4" or "X16"; None if it is not one of this unit."""
    found = QUANTITY.match(text)
    if found is None:
        return None
    prefix, digits, suffix = found.groups()
    value = number(digits)
    if (prefix or CELSIUS.get(suffix, suffix)) != unit or (prefix and suffix):
        return None
    return None if unit == "%" and value is not None and value > MAX_PERCENT else value
