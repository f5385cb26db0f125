"""The interface of every kind of device, with the defaults of stock torch."""

from __future__ import annotations

import abc
import contextlib
import copy
import os
import time
from typing import Any, Callable, ContextManager, List, Mapping, Optional, Sequence

from ...values import Foreign, Model  # relative: scripts import this package under another name (trainer/scripts)

AUTOCAST_TYPES = {"bf16": "bfloat16", "fp16": "float16"}


class Accelerator(abc.ABC):
    """
    One kind of device; the defaults fit stock torch.

    Attributes:
        device: torch's name of a device; "{n}" is its number on this node.
        distributed: the module whose process group has `backend`.
        data_parallel: the DistributedDataParallel for this device.
        visible_variable: the variable that limits which devices a process sees; "" if there is none.
        takes_device_ids: data_parallel needs device_ids=[n].
        needs_address: `distributed` takes an address instead of a store, and creates its own store there.
        rng_state_is_seed: rng_state() is the last seed, so it is valid until a number is drawn.
        worker_start: start method of data workers; None for Python's default.
        no_fp16: why precisions() lacks fp16, if the device itself has it.
        unusable_card: an unusable card of this node, with the remedy, if the CPU was chosen instead; or "".
    """

    name: str
    device: str
    backend: str
    visible_variable = ""
    takes_device_ids = True
    needs_address = False
    rng_state_is_seed = False
    worker_start: str | None = None
    no_fp16 = ""
    unusable_card = ""

    def __init__(self, torch: Foreign) -> None:
        self.torch = torch
        self.distributed: Any = torch.distributed
        self.data_parallel: Any = torch.nn.parallel.DistributedDataParallel

    def changed(self, **attributes: Any) -> Accelerator:
        """Return a copy with other values of existing attributes."""
        assert all(hasattr(self, name) for name in attributes), attributes
        changed = copy.copy(self)
        vars(changed).update(attributes)
        return changed

    def device_number(self, local_rank: int, env: Mapping[str, str] = os.environ) -> int:
        """Return the number of a rank's device: its local rank, or 0 if its launcher lets it see one device only."""
        return 0 if self._sees_one(env) else local_rank

    def only_device(self, env: Mapping[str, str] = os.environ) -> str:
        """Return what names the device of a rank whose launcher lets it see one only, for a comparison with other ranks; else ""."""
        return (
            f"{self.visible_variable}={env[self.visible_variable].strip()} {self.device_id()}"
            if self._sees_one(env)
            else ""
        )

    def _sees_one(self, env: Mapping[str, str]) -> bool:
        names = [name for name in env.get(self.visible_variable, "").split(",") if name.strip()]
        return len(names) == 1 and self.device_count() == 1

    def device_id(self) -> str:
        """Return the driver's id of this rank's device, which no other device has, or ""."""
        return ""

    def device_string(self, local_rank: int) -> str:
        """Return cuda:3, xla:3, gcu:3 or cpu."""
        return self.device.format(n=self.device_number(local_rank))

    def device_ids(self, local_rank: int) -> list[int] | None:
        """Return the argument of DistributedDataParallel; None on the CPU, where it refuses a list."""
        return [self.device_number(local_rank)] if self.takes_device_ids else None

    def autocast(self, precision: str) -> ContextManager[Any]:
        """Return the block of the forward pass: autocast for bf16 and fp16, else nothing."""
        if precision not in AUTOCAST_TYPES:
            return contextlib.nullcontext()
        return self.autocast_to(getattr(self.torch, AUTOCAST_TYPES[precision]))

    def autocast_to(self, dtype: Foreign) -> ContextManager[Any]:
        block: ContextManager[Any] = self.torch.autocast(self.device.partition(":")[0], dtype=dtype)
        return block

    def step(self, optimizer: Foreign, loss: Foreign, model: Model) -> None:  # a lazy device needs all three
        """Make one optimizer step."""
        optimizer.step()

    def start_reading(self, tensor: Foreign) -> Callable[[], List[Any]]:
        """Start to copy a new tensor to the host; the returned function waits for the copy. By default it is read at once."""
        values: List[Any] = tensor.tolist()
        return lambda: values

    def copy_stream(self) -> Foreign:
        """Return a new CopyStream, or None if copies do not run beside the computation."""
        return None

    def timestamp(self) -> Foreign:
        """Return the moment at which the device has done all that was started before; by default the host waits for it."""
        self.synchronize()
        return time.perf_counter()

    def seconds_between(self, begin: Foreign, end: Foreign) -> float:
        """Return the time between two timestamps."""
        return float(end - begin)

    def device_name(self) -> str:
        """Return the driver's name of this rank's device, or ""."""
        return ""

    def pin(self, address: int, size: int) -> None:  # a default
        """Let the device copy to this memory directly, if it can: it is faster."""

    def unpin(self, address: int) -> None:  # a default
        """Undo pin(), before the memory is freed."""

    def seed(self, number: int) -> None:  # a default
        """Seed the device's generator, if torch.manual_seed does not."""

    @abc.abstractmethod
    def device_count(self) -> int:
        """Return the number of devices on this node."""

    @abc.abstractmethod
    def set_device(self, number: int) -> None:
        """Make a device the current one."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait for the device."""

    @abc.abstractmethod
    def precisions(self) -> Sequence[str]:
        """Return the precisions, of fp32, bf16 and fp16, that the device and this torch support."""

    @abc.abstractmethod
    def scaler(self) -> Foreign:
        """Return a new GradScaler for fp16."""

    @abc.abstractmethod
    def peak_memory(self) -> Foreign:
        """Return the peak number of bytes allocated on the device, or held by the process on a CPU; None if unknown."""

    def memory_bytes(self) -> Optional[int]:  # a default
        """Return the size of the device's memory; None if it is not known, or not the device's own, as on a CPU."""
        return None

    def on_out_of_memory(self, act: Callable[[], None]) -> None:  # a default
        """Call `act` when the device's memory is exhausted, before the error is raised, if torch can."""

    def write_memory_snapshot(self, path: str) -> None:
        """Write the state of the device's allocator, for torch's viewer; only called by what on_out_of_memory() was given."""
        raise NotImplementedError

    @abc.abstractmethod
    def memory_stats(self) -> Foreign:
        """Return the counters of the device's allocator, such as num_alloc_retries; None if there are none."""

    @abc.abstractmethod
    def rng_state(self) -> Foreign:
        """Return the state of the device's generator as bytes on the CPU; None if there is only the CPU's."""

    @abc.abstractmethod
    def set_rng_state(self, state: Foreign) -> None:
        """Restore what rng_state returned."""


def stock_scaler(torch: Foreign) -> Foreign:
    """Return torch's GradScaler for any device, of torch >= 2.3; None before, when there was one for CUDA only."""
    return getattr(getattr(torch, "amp", None), "GradScaler", None)


def call_if_present(module: Foreign, function: str) -> Foreign:
    """Call a function that a vendor's module may lack; None without it."""
    return getattr(module, function, lambda: None)()
