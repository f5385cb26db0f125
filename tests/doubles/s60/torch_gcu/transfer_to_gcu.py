"""
The vendor's migration (TG2 torch_gcu/transfer_to_gcu.py): importing it makes programs written for CUDA use the card.

It needs a complete torch and a complete torch_gcu. `torch.device("cuda")` is the card's in C++ there; here it is where it is used.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import torch
import torch.distributed
import torch.distributed.fsdp

from . import CARDS, gcu

FUNCTIONS = (
    *(
        "is_available",
        "device_count",
        "current_device",
        "set_device",
        "synchronize",
        "is_bf16_supported",
        "is_initialized",
    ),
    *("get_device_name", "max_memory_allocated", "get_rng_state", "set_rng_state", "manual_seed", "manual_seed_all"),
)


def _with_eccl(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        args = tuple(item.replace("nccl", "eccl") if isinstance(item, str) else item for item in args)
        if isinstance(more.get("backend"), str):
            more["backend"] = more["backend"].lower().replace("nccl", "eccl").replace("cuda", "gcu")
        return function(*args, **more)

    return call


def _of_card(function: Any) -> Any:
    """A function of torch.gcu that takes the device `cuda` too."""

    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        return function(
            *(CARDS.resolve(item) if isinstance(item, (str, torch.device)) else item for item in args), **more
        )

    return call


def _unscripted(obj: Any, *_: Any, **__: Any) -> Any:
    warnings.warn("torch.jit.script will be disabled by transfer_to_gcu", RuntimeWarning, stacklevel=2)
    return obj


for _name in FUNCTIONS:
    setattr(torch.cuda, _name, _of_card(getattr(gcu, _name)))
CARDS.names.add("cuda")
torch.Tensor.cuda = lambda self, *args, **more: self.to(torch.device("gcu", *args), **more)  # type: ignore[method-assign]
torch.nn.Module.cuda = lambda self, *args: self.to(torch.device("gcu", *args))  # type: ignore[method-assign]
torch.distributed.init_process_group = _with_eccl(torch.distributed.init_process_group)
torch.distributed.new_group = _with_eccl(torch.distributed.new_group)
torch.distributed.is_nccl_available = torch.distributed.is_eccl_available  # type: ignore[attr-defined]
torch.jit.script = _unscripted
setattr(sys.modules["torch_gcu"], "is_transfer_to_gcu", True)  # noqa: B010 -- a module has no such attribute for mypy
