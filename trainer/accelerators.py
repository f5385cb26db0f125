"""
One table of what a rank trains on: cuda, gcu-i3x (S60, L300), gcu-t2x (T20, T21, i20), cpu.

The two gcu rows follow the vendor's published sources and were not verified on hardware. Nothing here needs a process
group, and torch comes in as an argument, so every row can be looked at without the device.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any, Callable, ContextManager

from trainer.errors import UserError

# `Any` below stands for modules and classes that exist only where the vendor's package is installed.


@dataclass(frozen=True)
class Accelerator:
    """
    How to use one kind of device.

    Attributes:
        device: "{n}" is the device's number on this node.
        distributed: the module whose process group speaks `backend`.
        takes_device_ids: whether its DistributedDataParallel wants device_ids=[n].
        own_rendezvous: `distributed` has its own store, so it must do the rendezvous itself.
        step: (optimizer, loss, model) -> None, one optimizer step.
    """

    name: str
    device: str
    backend: str
    distributed: Any
    data_parallel: Any
    takes_device_ids: bool
    own_rendezvous: bool
    count: Callable[[], int]
    set_device: Callable[[int], None]
    synchronize: Callable[[], None]
    autocast: Callable[[], ContextManager[Any]]
    step: Callable[[Any, Any, Any], None]

    def device_string(self, local_rank: int) -> str:
        """Such as cuda:3, xla:3, gcu:3, cpu."""
        return self.device.format(n=local_rank)

    def device_ids(self, local_rank: int) -> list[int] | None:
        """What DistributedDataParallel gets; None where it refuses them, as for modules on the CPU."""
        return [local_rank] if self.takes_device_ids else None


def load_torch_gcu() -> tuple[Any, str]:
    """(torch_gcu, ""), or (None, why it cannot be used); importing it registers the device and the backend eccl."""
    if importlib.util.find_spec("torch_gcu") is None:
        return None, "torch_gcu is not installed"
    try:
        return importlib.import_module("torch_gcu"), ""
    except (ImportError, OSError, RuntimeError) as exc:  # a missing driver library shows as any of the three
        return None, f"torch_gcu is installed but cannot be imported: {exc}"


def choose(asked: str, torch: Any, load_gcu: Callable[[], tuple[Any, str]] = load_torch_gcu) -> Accelerator:  # noqa: ANN401
    """
    The row for `asked`: auto, cuda, gcu or cpu; auto takes what is there, cuda first, cpu last.

    Raises:
        UserError: cuda or gcu was asked for and is not there; the message says what to do.
    """
    if asked == "cpu":
        return _cpu(torch)
    if asked in ("auto", "cuda") and torch.cuda.is_available() and torch.cuda.device_count() > 0:
        return _cuda(torch)
    if asked == "cuda":
        built = getattr(torch.version, "cuda", None)
        why = "no NVIDIA device or driver is visible (nvidia-smi, CUDA_VISIBLE_DEVICES)"
        remedy = why if built else f"torch {torch.__version__} is built without CUDA; install a CUDA build"
        raise UserError(f"device=cuda: {remedy}, or use device=cpu")
    gcu, problem = load_gcu()
    if gcu is not None and _has_devices(torch, gcu):
        return _gcu_i3x(torch) if hasattr(torch, "gcu") else _gcu_t2x(gcu)
    if asked == "gcu":
        problem = problem or "torch_gcu finds no device (efsmi, /dev/gcu*, TOPS_VISIBLE_DEVICES)"
        raise UserError(
            f"device=gcu: {problem}; install TopsRider and its torch_gcu for this Python, or use device=cpu"
        )
    if gcu is None and "cannot be imported" in problem:
        sys.stderr.write(f"WARNING: {problem}; training on the CPU\n")
    return _cpu(torch)


def _has_devices(torch: Any, gcu: Any) -> bool:  # noqa: ANN401
    module = torch.gcu if hasattr(torch, "gcu") else gcu
    return bool(module.is_available()) and int(module.device_count()) > 0


def _cuda(torch: Any) -> Accelerator:  # noqa: ANN401
    return Accelerator(
        name="cuda",
        device="cuda:{n}",
        backend="nccl",
        distributed=torch.distributed,
        data_parallel=torch.nn.parallel.DistributedDataParallel,
        takes_device_ids=True,
        own_rendezvous=False,
        count=torch.cuda.device_count,
        set_device=torch.cuda.set_device,
        synchronize=torch.cuda.synchronize,
        autocast=lambda: torch.autocast("cuda", dtype=torch.bfloat16),
        step=_plain_step,
    )


def _gcu_i3x(torch: Any) -> Accelerator:  # noqa: ANN401
    """Not verified on hardware. Importing torch_gcu has registered device gcu and backend eccl with stock torch."""
    return Accelerator(
        name="gcu-i3x",
        device="gcu:{n}",
        backend="eccl",
        distributed=torch.distributed,
        data_parallel=torch.nn.parallel.DistributedDataParallel,
        takes_device_ids=True,
        own_rendezvous=False,
        count=torch.gcu.device_count,
        set_device=torch.gcu.set_device,
        synchronize=torch.gcu.synchronize,
        autocast=lambda: torch.autocast("gcu", dtype=torch.bfloat16),
        step=_plain_step,
    )


def _gcu_t2x(gcu: Any) -> Accelerator:  # noqa: ANN401
    """
    Not verified on hardware. torch 1.10 with the vendor's forks of c10d and DDP; stock ones never know eccl here.

    The graph is lazy: nothing runs until optimizer_step or unlazy. The mode follows the vendor's own training scripts.
    """
    distributed = importlib.import_module("torch_gcu.distributed")
    parallel = importlib.import_module("torch_gcu.nn.parallel")
    amp_dtype = importlib.import_module("torch").bfloat16

    def step(optimizer: Any, loss: Any, model: Any) -> None:  # noqa: ANN401
        mode = gcu.JitRunMode.ASYNC if distributed.is_initialized() else gcu.JitRunMode.SAFEASYNC
        gcu.optimizer_step(optimizer, [loss], mode=mode, model=model)

    return Accelerator(
        name="gcu-t2x",
        device="xla:{n}",
        backend="eccl",
        distributed=distributed,
        data_parallel=parallel.DistributedDataParallel,
        takes_device_ids=False,  # it takes None or one; with None it leaves the inputs where they are, on the device
        own_rendezvous=True,
        count=gcu.device_count,
        set_device=gcu.set_device,
        synchronize=gcu.synchronize,
        autocast=lambda: gcu.amp.autocast(dtype=amp_dtype),
        step=step,
    )


def _cpu(torch: Any) -> Accelerator:  # noqa: ANN401
    return Accelerator(
        name="cpu",
        device="cpu",
        backend="gloo",
        distributed=torch.distributed,
        data_parallel=torch.nn.parallel.DistributedDataParallel,
        takes_device_ids=False,
        own_rendezvous=False,
        count=lambda: sys.maxsize,
        set_device=_nothing,
        synchronize=_nothing,
        autocast=lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        step=_plain_step,
    )


def autocast(accelerator: Accelerator, precision: str) -> ContextManager[Any]:
    """The block the forward pass runs in: bf16 where asked for, else as it is."""
    return accelerator.autocast() if precision == "bf16" else contextlib.nullcontext()


def _plain_step(optimizer: Any, loss: Any, model: Any) -> None:  # noqa: ANN401, ARG001 -- the lazy row needs all three
    optimizer.step()


def _nothing(*_: object) -> None:
    """A CPU has no current device and nothing in flight."""
