"""The calls of this process, in order, and the error for calls that the real libraries accept and then do wrongly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, List

import torch

CALLS: List[str] = []  # module state, as a driver's state is per process


class ContractError(AssertionError):
    """The real library raises nothing here, but later hangs, crashes or uses the wrong card."""


def record_call(call: str) -> None:
    """Record a call, and append it to $GCU_DOUBLE_CALLS/<rank> if that is set."""
    CALLS.append(call)
    folder = os.environ.get("GCU_DOUBLE_CALLS")
    if folder:
        with Path(folder, os.environ.get("RANK", "0")).open("a", encoding="utf-8") as file:
            file.write(f"{call}\n")


def need_device(call: str) -> None:
    """Require set_device before the group: libeccl uses the current device when the group is made."""
    if not any(earlier.startswith("set_device") for earlier in CALLS):
        raise ContractError(f"{call} before set_device: every rank of this node would take card 0")


def visible_cards() -> int:
    """
    The number of visible cards: $GCU_DOUBLE_CARDS (8), less those that TOPS_VISIBLE_DEVICES hides.

    Parsed as in TG2 gcu/__init__.py _parse_visible_devices: the list ends at the first item that is no number or too high.
    """
    cards = int(os.environ.get("GCU_DOUBLE_CARDS", "8"))
    visible = os.environ.get("TOPS_VISIBLE_DEVICES")
    if visible is None:
        return cards
    count = 0
    for number in visible.split(","):
        if not number.strip().isdigit() or int(number) >= cards:
            break
        count += 1
    return count


class Generators:
    """One generator per card, with a random seed until it is seeded."""

    def __init__(self) -> None:
        self._made: Dict[int, torch.Generator] = {}

    def __call__(self, card: int) -> torch.Generator:
        if card not in self._made:
            self._made[card] = torch.Generator()
            self._made[card].seed()
        return self._made[card]

    def manual_seed_all(self, seed: int) -> None:
        for card in range(visible_cards()):
            self(card).manual_seed(seed)
