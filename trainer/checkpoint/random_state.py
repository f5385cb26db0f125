"""The random generators of one rank as JSON: Python's, torch's, numpy's where it is in use, and on cuda the device's."""

from __future__ import annotations

import json
import random
import sys
from typing import Any, Dict, Mapping

import torch


def random_state(device: torch.device) -> bytes:
    state: Dict[str, Any] = {"python": random.getstate(), "torch": _hex(torch.get_rng_state())}
    if device.type == "cuda":
        state["cuda"] = _hex(torch.cuda.get_rng_state(device))
    if _numpy():
        name, words, *rest = _numpy().random.get_state()
        state["numpy"] = [name, [int(word) for word in words], *rest]
    return json.dumps(state).encode()


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(_from_hex(state["torch"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_from_hex(state["cuda"]), device)
    if _numpy() and "numpy" in state:
        _numpy().random.set_state(tuple(state["numpy"]))


def _numpy() -> Any:  # noqa: ANN401 -- a module that a node may lack
    """Where it is loaded: torch does that itself where numpy is installed."""
    return sys.modules.get("numpy")


def _hex(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _from_hex(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
