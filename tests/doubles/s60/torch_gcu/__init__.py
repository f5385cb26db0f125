"""
torch_gcu of TopsRider i3x (S60, L300): importing it gives stock torch a device `gcu` and a backend `eccl`.

TG2 torch_gcu/__init__.py: PrivateUse1 renamed, torch.gcu registered, then the backend. Gloo carries the numbers.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
import torch.distributed
from torch.distributed.distributed_c10d import ProcessGroupGloo

from tests.doubles.contract import record_call
from tests.doubles.tensors import Cards, install, is_on_card

from . import gcu

__version__ = "2.10.0"
NO_BACKEND = "No backend type associated with device type cpu"  # c10d's words: eccl is registered for `gcu` alone


def _computing() -> Any:
    """torch.autocast("gcu") applies to the computation on the CPU underneath."""
    if not torch.is_autocast_enabled("gcu"):
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=torch.get_autocast_dtype("gcu"))


def _make_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    if not gcu.is_available():
        raise RuntimeError("ProcessGroupECCL is only supported with GCUs, no GCUs found!")  # TG2 ProcessGroupECCL.cpp
    # As with NCCL, the card is that of the first tensor (TG2 ProcessGroupECCL.cpp): accelerate makes the group before set_device.
    record_call(f"init_process_group eccl {timeout.total_seconds():g}")
    return ProcessGroupGloo(store, rank, size, timeout)


def _checked(collective: Any) -> Any:
    """Refuse CPU tensors."""

    @functools.wraps(collective)
    def call(*args: Any, **more: Any) -> Any:
        arguments = [
            item for given in (*args, *more.values()) for item in (given if isinstance(given, list) else [given])
        ]
        is_eccl = torch.distributed.is_initialized() and torch.distributed.get_backend() == "eccl"
        if is_eccl and any(isinstance(item, torch.Tensor) and not is_on_card(item) for item in arguments):
            raise RuntimeError(NO_BACKEND)
        return collective(*args, **more)

    return call


def _wrapping(construct: Any) -> Any:
    @functools.wraps(construct)
    def wrap(self: Any, module: torch.nn.Module, device_ids: Any = None, *args: Any, **more: Any) -> None:
        devices = sorted({str(parameter.device) for parameter in module.parameters()})
        construct(self, module, device_ids, *args, **more)
        if devices == ["cpu"] and torch.distributed.get_backend() == "eccl":
            raise RuntimeError(NO_BACKEND)
        record_call(f"DistributedDataParallel {device_ids} {' '.join(devices)}")

    return wrap


torch.utils.rename_privateuse1_backend("gcu")  # type: ignore[attr-defined]
torch._register_device_module("gcu", gcu)  # type: ignore[no-untyped-call]  # the vendor's way
torch.utils.generate_methods_for_privateuse1_backend()  # type: ignore[attr-defined]
CARDS = Cards("gcu", gcu.device_count, gcu.current_device, narrow=False, computing=_computing, generator=gcu.GENERATORS)
install(CARDS)
is_transfer_to_gcu = False
torch.distributed.is_eccl_available = lambda: True  # type: ignore[attr-defined]
# CPU tensors too: the card's tensors are CPU tensors underneath.
torch.distributed.Backend.register_backend("eccl", _make_group, devices=["gcu", "cpu"])
for _name in ("all_reduce", "all_gather", "broadcast"):
    setattr(torch.distributed, _name, _checked(getattr(torch.distributed, _name)))
_ddp = torch.nn.parallel.DistributedDataParallel
_ddp.__init__ = _wrapping(_ddp.__init__)  # type: ignore[method-assign]
