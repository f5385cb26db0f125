"""torch.gcu of the S60 generation (TG2 torch_gcu/gcu)."""

from __future__ import annotations

import os
from typing import Any, Dict, List

import torch

from tests.doubles.contract import Generators, record_call, visible_cards

from . import amp as amp

_CURRENT: Dict[str, int] = {"device": 0}  # the driver's state


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return visible_cards()


def current_device() -> int:
    return _CURRENT["device"]


def set_device(device: Any) -> None:
    number = device if isinstance(device, int) else torch.device(device).index
    if isinstance(device, (str, torch.device)) and torch.device(device).type != "gcu":
        raise ValueError(f"Expected a gcu device, but got: {device}")  # TG2 gcu/_utils.py
    if number < 0:
        return
    if number >= device_count():
        raise RuntimeError(f"GCU error: invalid device ordinal {number}")  # torch.cuda's, in the vendor's name
    _CURRENT["device"] = number
    record_call(f"set_device {number}")


def get_device_name(device: Any = None) -> str:  # one kind per node
    return "Enflame S60"


def synchronize(device: Any = None) -> None:
    """Nothing is in flight on a CPU."""


def is_bf16_supported() -> bool:
    return not os.environ.get("GCU_DOUBLE_NO_BF16")


def get_amp_supported_dtype() -> List[torch.dtype]:
    """Called by torch.autocast("gcu") (TG2 gcu/autocast_utils.py)."""
    return [torch.float32, torch.float16, *([torch.bfloat16] if is_bf16_supported() else [])]


def max_memory_allocated(device: Any = None) -> int:
    return 0


def _is_in_bad_fork() -> bool:
    return False


GENERATORS = Generators()  # TG2 gcu/random.py has torch.cuda's functions; torch.manual_seed calls manual_seed_all below


def get_rng_state(device: Any = "gcu") -> torch.Tensor:
    return GENERATORS(_number(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "gcu") -> None:
    GENERATORS(_number(device)).set_state(new_state)


def _number(device: Any) -> int:
    number: Any = device if isinstance(device, int) else torch.device(device).index  # None without one
    return current_device() if number is None else int(number)


def manual_seed(seed: int) -> None:
    GENERATORS(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    GENERATORS.manual_seed_all(int(seed))
