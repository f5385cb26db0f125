"""
torch_gcu of TopsRider t2x (T20, T21, i20): functions on the module itself, and torch without a device module.

There is no torch.gcu and no torch_gcu.__version__ (TG1 __init__.py). Without the lazy graph: real cards compute
at optimizer_step, unlazy or a read; this computes at once.
"""

from __future__ import annotations

import contextlib
import enum
from typing import Any, Dict, List

import torch

from tests.doubles.contract import Generators, record_call, visible_cards
from tests.doubles.tensors import Cards, install, is_on_card

_CURRENT: Dict[str, int] = {"device": 0}  # the driver's state


class JitRunMode(enum.Enum):
    """TG1 core/model.py, note [JitRunMode]."""

    SYNC = 0
    ASYNC = 1
    SAFEASYNC = 2


def is_available() -> bool:
    return device_count() > 0


def device_count() -> int:
    return visible_cards()


def current_device() -> int:
    return _CURRENT["device"]


def get_device_name(device: Any = None) -> str:
    number = _index(device, optional=True)
    if not 0 <= number < device_count():  # TG1 core/device.py _check_device_valid
        raise IndexError(f"Invalid device id, must in [0, {device_count() - 1}], got {number}")
    return "T20"


def gcu_device(device: Any = None) -> torch.device:
    return torch.device(f"xla:{_index(device, optional=True)}")


def set_device(device: Any) -> None:
    """TG1 core/device.py set_device: a number without a card is ignored silently."""
    number = _index(device)
    if 0 <= number < device_count():
        _CURRENT["device"] = number
        record_call(f"set_device {number}")


class device:  # the vendor's name
    """A context manager, no device (TG1 core/device.py)."""

    def __init__(self, device: Any) -> None:
        self.number, self.before = _index(device, optional=True), -1

    def __enter__(self) -> None:
        self.before = current_device()
        set_device(self.number)

    def __exit__(self, *_: object) -> None:
        set_device(self.before)


def _index(device: Any, *, optional: bool = False) -> int:
    """TG1 core/device.py _get_device_index."""
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "xla":
            raise ValueError(f"Expected a gcu device, but got: {device}")
        device = device.index
    if isinstance(device, int):
        return device
    if not optional:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    return current_device()


def synchronize(device: Any = None) -> None:
    _index(device, optional=True)


def unlazy(tensors: Any, mode: JitRunMode = JitRunMode.SAFEASYNC) -> None:
    """TG1 core/model.py: no `device`, though its own GradScaler passes one."""
    if not isinstance(tensors, (list, tuple)) or not all(is_on_card(tensor) for tensor in tensors):
        raise TypeError("Tensors must be a list of GCU tensor.")
    record_call("unlazy")


def sync_lived_tensor(device: Any = None, mode: JitRunMode = JitRunMode.SAFEASYNC) -> None:
    get_device_name(device)


def optimizer_step(
    optimizer: Any,
    extra_output: Any = None,  # only names what the graph puts out
    optimizer_args: Any = None,
    model: Any = None,
    mode: JitRunMode = JitRunMode.SAFEASYNC,
    device: Any = None,
) -> Any:
    for value, kind in ((optimizer, torch.optim.Optimizer), (model, torch.nn.Module)):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"Param must be {kind}, got {type(value)}")
    if model is None:
        get_device_name(device)
    record_call(f"optimizer_step {mode.name}")
    return optimizer.step(**(optimizer_args or {}))


def fetch_gradients(optimizer: Any) -> List[torch.Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def manual_seed_all(seed: int) -> None:
    if not 0 <= int(seed) <= 0xFFFFFFFF:
        raise ValueError(f"Seed must be a unint32 number which is between 0~4294967295, got {seed}")
    _GENERATORS.manual_seed_all(int(seed))


# TG1 core/random.py can seed them but not read or set their state; torch 1.10 does not know them
_GENERATORS = Generators()
install(
    Cards("xla", device_count, current_device, narrow=True, computing=contextlib.nullcontext, generator=_GENERATORS)
)
torch.Tensor.is_gcu = lambda self: self.device.type == "xla"  # type: ignore[attr-defined]  # TG1 core/pytorch_override.py

from . import amp, nn, utils  # noqa: E402, F401 -- TG1 __init__.py; `distributed` is not among them
