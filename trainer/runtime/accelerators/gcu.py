"""Enflame cards: GcuI3x (S60, L300), GcuT2x (T20, T21, i20). Both follow the vendor's published sources and were not verified on hardware."""

from __future__ import annotations

import importlib
from typing import Any, ContextManager, Sequence

from ...values import Foreign, Model  # relative: scripts import this package under another name (trainer/scripts)
from .base import Accelerator, call_if_present
from .cuda import Cuda

NO_SCALER_T2X = (
    "the card has it, but torch_gcu's own GradScaler calls unlazy() with an argument that this refuses, so that no step can "
    "be skipped after an overflow; use bf16 or fp32"
)


class GcuI3x(Cuda):
    """Not verified on hardware. Importing torch_gcu has registered torch.gcu, like torch.cuda, and the backend eccl."""

    name = "gcu-i3x"
    device = "gcu:{n}"
    backend = "eccl"
    visible_variable = "TOPS_VISIBLE_DEVICES"

    def __init__(self, torch: Foreign) -> None:
        super().__init__(torch, torch.gcu)

    # The vendor's events are not verified.
    start_reading = Accelerator.start_reading
    copy_stream = Accelerator.copy_stream
    timestamp = Accelerator.timestamp
    seconds_between = Accelerator.seconds_between

    def pin(self, address: int, size: int) -> None:
        """Not known to be possible."""

    def unpin(self, address: int) -> None:
        pass

    def precisions(self) -> Sequence[str]:
        return ("fp32", "bf16", "fp16") if self.module.is_bf16_supported() else ("fp32", "fp16")

    def scaler(self) -> Foreign:
        return self.module.amp.GradScaler()

    def device_name(self) -> str:
        return ""

    device_id = Accelerator.device_id


class GcuT2x(Accelerator):
    """
    Not verified on hardware. torch 1.10 with the vendor's forks of c10d and DDP; the stock ones do not support eccl.

    The graph is lazy: nothing runs until optimizer_step or unlazy. The modes are taken from the vendor's training scripts.
    """

    name = "gcu-t2x"
    device = "xla:{n}"
    backend = "eccl"
    visible_variable = "TOPS_VISIBLE_DEVICES"
    takes_device_ids = True  # with None it puts a replica on every card of the node, in every rank
    needs_address = True
    rng_state_is_seed = True
    worker_start = "spawn"  # as in the vendor's training scripts
    no_fp16 = NO_SCALER_T2X

    def __init__(self, torch: Foreign, gcu: Foreign) -> None:
        super().__init__(torch)
        self.gcu = gcu
        self.distributed = importlib.import_module("torch_gcu.distributed")
        self.data_parallel = importlib.import_module("torch_gcu.nn.parallel").DistributedDataParallel
        self._seed = 0

    def device_count(self) -> int:
        return int(self.gcu.device_count())

    def set_device(self, number: int) -> None:
        self.gcu.set_device(number)

    def synchronize(self) -> None:
        self.gcu.synchronize()

    def autocast_to(self, dtype: Foreign) -> ContextManager[Any]:
        block: ContextManager[Any] = self.gcu.amp.autocast(dtype=dtype)
        return block

    def precisions(self) -> Sequence[str]:
        return ("fp32", "bf16")

    def scaler(self) -> Foreign:
        return None

    def step(self, optimizer: Foreign, loss: Foreign, model: Model) -> None:
        mode = self.gcu.JitRunMode.ASYNC if self.distributed.is_initialized() else self.gcu.JitRunMode.SAFEASYNC
        self.gcu.optimizer_step(optimizer, [loss], mode=mode, model=model)

    def peak_memory(self) -> Foreign:
        return call_if_present(self.gcu, "max_memory_allocated")

    def memory_stats(self) -> Foreign:
        return call_if_present(self.gcu, "memory_stats")

    def seed(self, number: int) -> None:
        self._seed = number % 2**32  # the largest it takes
        self.gcu.manual_seed_all(self._seed)

    def rng_state(self) -> Foreign:
        return self.torch.tensor(list(self._seed.to_bytes(4, "little")), dtype=self.torch.uint8)

    def set_rng_state(self, state: Foreign) -> None:
        self.seed(int.from_bytes(bytes(state.tolist()), "little"))
