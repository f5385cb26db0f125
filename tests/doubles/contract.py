"""What was called in this process, in order, and the error for calls that the real libraries would let pass."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, List

import torch

CALLS: List[str] = []  # of this process; module state because what it stands in for is a driver


class ContractError(AssertionError):
    """The real library raises nothing here, and goes wrong later: a hang, a crash or the wrong card."""


def note(call: str) -> None:
    """Remember a call, and write it to $GCU_DOUBLE_CALLS/<rank> where that is set."""
    CALLS.append(call)
    folder = os.environ.get("GCU_DOUBLE_CALLS")
    if folder:
        with Path(folder, os.environ.get("RANK", "0")).open("a", encoding="utf-8") as file:
            file.write(f"{call}\n")


def need_device(what: str) -> None:
    """The device comes before the group: libeccl takes whichever is current when the group is made."""
    if not any(call.startswith("set_device") for call in CALLS):
        raise ContractError(f"{what} before set_device: every rank of this node would take card 0")


def visible_cards() -> int:
    """
    How many cards the process sees: $GCU_DOUBLE_CARDS (8), less what TOPS_VISIBLE_DEVICES hides.

    As TG2 gcu/__init__.py _parse_visible_devices reads that: numbers, the list ending at the first that is none or too high.
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
    """One a card; until it is seeded, nobody knows what it gives."""

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
