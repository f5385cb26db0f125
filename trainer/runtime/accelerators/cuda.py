"""NVIDIA cards."""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Iterable, List, Optional, Sequence

from ...values import Foreign  # relative: scripts import this package under another name (trainer/scripts)
from .base import Accelerator, call_if_present, stock_scaler


class Cuda(Accelerator):
    """NVIDIA cards, by stock torch and NCCL."""

    name = "cuda"
    device = "cuda:{n}"
    backend = "nccl"
    visible_variable = "CUDA_VISIBLE_DEVICES"

    def __init__(self, torch: Foreign, module: Foreign = None) -> None:
        """`module` has the functions of torch.cuda, which is the default."""
        super().__init__(torch)
        self.module = module or torch.cuda

    def device_count(self) -> int:
        return int(self.module.device_count())

    def set_device(self, number: int) -> None:
        self.module.set_device(number)

    def synchronize(self) -> None:
        self.module.synchronize()

    def start_reading(self, tensor: Foreign) -> Callable[[], List[Any]]:
        copy = self.torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        copied = self.module.Event()
        copied.record()

        def read() -> List[Any]:
            copied.synchronize()
            values: List[Any] = copy.tolist()
            return values

        return read

    def copy_stream(self) -> Foreign:
        return CopyStream(self.module)

    def timestamp(self) -> Foreign:
        event = self.module.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, begin: Foreign, end: Foreign) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def pin(self, address: int, size: int) -> None:
        self.module.cudart().cudaHostRegister(address, size, 0)  # if it fails, copies are slower

    def unpin(self, address: int) -> None:
        self.module.cudart().cudaHostUnregister(address)

    def precisions(self) -> Sequence[str]:
        """Older cards emulate bf16, slower than fp32."""
        has_bf16 = self.torch.cuda.get_device_capability() >= (8, 0)
        return ("fp32", "bf16", "fp16") if has_bf16 else ("fp32", "fp16")

    def scaler(self) -> Foreign:
        scaler = stock_scaler(self.torch)
        return scaler("cuda") if scaler else self.torch.cuda.amp.GradScaler()

    def device_name(self) -> str:
        return str(self.torch.cuda.get_device_name())

    def device_id(self) -> str:
        return str(getattr(self.torch.cuda.get_device_properties(self.torch.cuda.current_device()), "uuid", ""))

    def memory_bytes(self) -> Optional[int]:
        found = call_if_present(self.module, "mem_get_info")
        return int(found[1]) if found else None

    def peak_memory(self) -> Foreign:
        return call_if_present(self.module, "max_memory_allocated")

    def memory_stats(self) -> Foreign:
        return call_if_present(self.module, "memory_stats")

    def on_out_of_memory(self, act: Callable[[], None]) -> None:
        attach = getattr(self.torch._C, "_cuda_attach_out_of_memory_observer", None)  # noqa: SLF001 -- torchtitan's way
        if attach is not None and self.module is self.torch.cuda:
            attach(lambda *_: act())

    def write_memory_snapshot(self, path: str) -> None:
        self.module.memory._dump_snapshot(path)  # noqa: SLF001 -- torch's documented name

    def rng_state(self) -> Foreign:
        return self.module.get_rng_state()

    def set_rng_state(self, state: Foreign) -> None:
        self.module.set_rng_state(state)


class CopyStream:
    """A stream for copies to the device; `module` has the functions of torch.cuda."""

    def __init__(self, module: Foreign) -> None:
        self.module, self.stream = module, module.Stream()

    def block(self) -> ContextManager[Any]:
        """Return the block whose copies run on this stream."""
        block: ContextManager[Any] = self.module.stream(self.stream)
        return block

    def wait(self, tensors: Iterable[Any]) -> None:
        """Have the computation wait for the copies, and keep the memory of these tensors until it has used them."""
        current = self.module.current_stream()
        current.wait_stream(self.stream)
        for tensor in tensors:
            tensor.record_stream(current)
