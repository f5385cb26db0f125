"""Values that the vendors' tools print. A value that cannot be read is a fault in the result, never a guess or an exception."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, TypedDict

    class CardReading(TypedDict, total=False):
        """
        A card by its vendor's tool. A missing key was not printed; None was printed as not available, or cannot be read.

        `values` has every value as printed, by the tool's own name, also those that have no key here.

        `state` is the performance level: P0 to P15, or a GCU's Sleep, Active, LP0, …. `errors` has the counters that are not 0.
        """

        index: int
        name: Optional[str]
        uuid: Optional[str]
        serial: Optional[str]
        bus_id: Optional[str]
        driver: Optional[str]
        firmware: Optional[str]
        memory_total_mib: Optional[float]
        memory_used_mib: Optional[float]
        utilization_percent: Optional[float]
        temperature_c: Optional[float]
        power_w: Optional[float]
        power_limit_w: Optional[float]
        state: Optional[str]
        ecc: Optional[str]
        mig: Optional[str]
        compute_mode: Optional[str]
        persistence: Optional[str]
        virtual: Optional[str]
        link_generation: Optional[float]
        link_generation_max: Optional[float]
        link_width: Optional[float]
        link_width_max: Optional[float]
        uncorrected_errors: Optional[float]
        throttle_mask: Optional[int]
        healthy: Optional[bool]
        errors: Dict[str, int]
        values: Dict[str, str]

    class CardReadings(TypedDict):
        """`version` is that of the tool, if it prints one; `faults` are the lines and values that cannot be read, in words."""

        cards: List[CardReading]
        version: Optional[str]
        driver: Optional[str]
        faults: List[str]


SHOWN = 160  # characters of a line that cannot be read
NUMBER = re.compile(r"\d{1,12}(\.\d{1,6})?\Z", re.ASCII)
# A domain has 8 digits in nvidia-smi, 4 in sysfs, 2 in efsmi.
BUS_ID = re.compile(r"(?:([0-9a-f]{2,8}):)?([0-9a-f]{2}):([0-9a-f]{1,2})\.([0-9a-f])\Z", re.ASCII | re.IGNORECASE)


def complete_lines(text: str) -> List[str]:
    """The lines that end in a newline: a last line without one is cut, and so may its last number be."""
    return text.replace("\r\n", "\n").split("\n")[:-1]


def shown(line: str) -> str:
    return repr(line.strip()[:SHOWN])


def number(text: str) -> Optional[float]:
    """A decimal number without sign and unit; None for anything else."""
    return float(text) if NUMBER.match(text) else None


def bus_id(text: str) -> Optional[str]:
    """A PCI address as sysfs writes it, such as 0000:3d:00.0; None if it is none."""
    found = BUS_ID.match(text)
    if found is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def add_card(cards: List[CardReading], card: CardReading, faults: List[str]) -> None:
    """Add a card, unless its index has been printed before: then neither of the two can be trusted."""
    fault = f"card {card['index']} is printed twice"
    same = [known for known in cards if known["index"] == card["index"]]
    if same:
        cards.remove(same[0])
        faults.append(fault)
    elif fault not in faults:
        cards.append(card)
