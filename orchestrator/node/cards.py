"""The cards of a machine by their device files, and the variables that select those that a process sees."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Dict, List, Optional, TypeVar

    Device = TypeVar("Device")

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "gcu": "TOPS_VISIBLE_DEVICES"}


def visible_devices(by_name: Mapping[str, Device], value: str) -> Optional[List[Device]]:
    """The devices that a value of such a variable names, in its order; None if it has another name, or one twice."""
    names = [name.strip() for name in value.split(",")]
    if len(set(names)) < len(names) or not all(name in by_name for name in names):
        return None
    return [by_name[name] for name in names]


def count_cards(folder: str = "/dev") -> Dict[str, int]:
    """Count the device files of each kind of card. Not by a vendor's tool, which may hang."""
    names = os.listdir(folder)
    kinds = {"cuda": "nvidia", "gcu": "gcu"}
    return {
        kind: sum(1 for name in names if name.startswith(prefix) and name[len(prefix) :].isdigit())
        for kind, prefix in kinds.items()
    }


def kind_of_cards(accelerator: str) -> Optional[str]:
    """The kind of cards that the ranks use: the inventory's, or that of the device files; None if the ranks use none."""
    if accelerator != "auto":
        return accelerator if accelerator in VISIBLE else None
    return next((kind for kind, count in count_cards().items() if count), None)
