"""The random generators of one rank as JSON: Python's, torch's, numpy's if it is loaded, and the device's."""

from __future__ import annotations

import json
import random
import sys
from types import ModuleType
from typing import Any, Dict, Mapping

import torch

from trainer.runtime.accelerators import Accelerator


def random_state(accelerator: Accelerator) -> bytes:
    """Return the states; a device's generator that exposes only its seed is reseeded first, from the CPU generator."""
    if accelerator.rng_state_is_seed:
        accelerator.seed(int(torch.randint(2**32, ())))
    on_device = accelerator.rng_state()
    state: Dict[str, Any] = {"python": random.getstate(), "torch": _hex(torch.get_rng_state())}
    if on_device is not None:
        state[_key(accelerator)] = _hex(on_device)
    numpy = _numpy()
    if numpy:
        name, words, *rest = numpy.random.get_state()
        state["numpy"] = [name, [int(word) for word in words], *rest]
    return json.dumps(state).encode()


def restore_random_state(state: Mapping[str, Any], accelerator: Accelerator) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(_from_hex(state["torch"]))
    if _key(accelerator) in state:
        accelerator.set_rng_state(_from_hex(state[_key(accelerator)]))
    numpy = _numpy()
    if numpy and "numpy" in state:
        numpy.random.set_state(tuple(state["numpy"]))


def _key(accelerator: Accelerator) -> str:
    """cuda, gcu or xla."""
    return accelerator.device.partition(":")[0]


def _numpy() -> ModuleType | None:
    """The module, which a node may lack, if it is loaded; torch loads it if it is installed."""
    return sys.modules.get("numpy")


def _hex(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _from_hex(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
