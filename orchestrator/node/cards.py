"""The variables that select the cards that a process sees."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import List, Optional, TypeVar

    Device = TypeVar("Device")

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "gcu": "TOPS_VISIBLE_DEVICES"}


def visible_devices(by_name: Mapping[str, Device], value: str) -> Optional[List[Device]]:
    """The devices that a value of such a variable names, in its order; None if it has another name, or one twice."""
    names = [name.strip() for name in value.split(",")]
    if len(set(names)) < len(names) or not all(name in by_name for name in names):
        return None
    return [by_name[name] for name in names]
