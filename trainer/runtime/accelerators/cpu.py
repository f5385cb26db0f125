"""The CPU."""

from __future__ import annotations

import resource
import sys
from typing import Any, Callable, List, Sequence

from ...values import Foreign  # relative: scripts import this package under another name (trainer/scripts)
from .base import Accelerator, stock_scaler


class Cpu(Accelerator):
    """Any number of ranks per node."""

    name = "cpu"
    device = "cpu"
    backend = "gloo"
    takes_device_ids = False

    def device_count(self) -> int:
        return sys.maxsize

    def set_device(self, number: int) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def start_reading(self, tensor: Foreign) -> Callable[[], List[Any]]:
        def read() -> List[Any]:
            values: List[Any] = tensor.tolist()
            return values

        return read

    def precisions(self) -> Sequence[str]:
        return ("fp32", "bf16", "fp16") if stock_scaler(self.torch) else ("fp32", "bf16")

    def scaler(self) -> Foreign:
        return stock_scaler(self.torch)("cpu")

    def peak_memory(self) -> Foreign:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def memory_stats(self) -> Foreign:
        return None

    def rng_state(self) -> Foreign:
        return None

    def set_rng_state(self, state: Foreign) -> None:
        pass
