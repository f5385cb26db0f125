"""
One table of what a rank trains on: cuda, gcu-i3x (S60, L300), gcu-t2x (T20, T21, i20), cpu.

The two gcu rows follow the vendor's published sources and were not verified on hardware. Nothing here needs a process
group, and torch comes in as an argument, so every row can be looked at without the device.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import resource
import sys
from dataclasses import dataclass, replace
from typing import Any, Callable, ContextManager, Sequence

from ..errors import UserError  # relative: scripts get this under another name (trainer/scripts)

# `Any` below stands for modules and classes that exist only where the vendor's package is installed.

CUDA_FILES = "/dev/nvidia[0-9]*"
GCU_FILES = "/dev/gcu*"
NOT_INSTALLED = "torch_gcu is not installed for this Python"
INSTALL_GCU = "install TopsRider and its torch_gcu for this Python"
NO_CARD = "torch_gcu finds no device (efsmi, /dev/gcu*, TOPS_VISIBLE_DEVICES)"
NO_SCALER_T2X = (
    "the card has it, but torch_gcu's own GradScaler calls unlazy() with an argument that this refuses, so that no step can "
    "be skipped after an overflow; use bf16 or fp32"
)


def _nothing(*_: object) -> None:
    """A CPU has no current device, no generator and nothing in flight; some devices count no memory."""


@dataclass(frozen=True)
class Accelerator:
    """
    How to use one kind of device.

    Attributes:
        device: "{n}" is the device's number on this node.
        distributed: the module whose process group speaks `backend`.
        takes_device_ids: whether its DistributedDataParallel wants device_ids=[n].
        own_rendezvous: `distributed` takes no store of torch's, so it is given an address and makes one of its own.
        autocast: takes the name of a torch dtype.
        precisions: what the device and this torch can do of fp32, bf16, fp16.
        scaler: a new GradScaler, for fp16.
        step: (optimizer, loss, model) -> None, one optimizer step.
        device_name: what the driver calls this rank's device; "" where it is not asked.
        peak_memory: the most bytes held so far, of the device, or of the process on a CPU; None where nobody counts.
        memory_stats: what the device's allocator has counted, num_alloc_retries and num_ooms among it; None as above.
        seed: seeds the device's generator, where torch.manual_seed does not.
        rng_state: of this rank's device, as bytes on the CPU; None where there is no other generator than the CPU's.
        set_rng_state: takes what rng_state gave.
        tells_seed_only: rng_state is what the generator was seeded with, so it holds until something is drawn.
        worker_start: how processes that make batches are started; None as Python does it.
        no_fp16: why `precisions` lacks it, where the device itself has it.
        passed_over: what seems to be here and cannot be used, with the remedy, where the CPU was taken in its place; or "".
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
    autocast: Callable[[str], ContextManager[Any]]
    precisions: Callable[[], Sequence[str]]
    scaler: Callable[[], Any]
    step: Callable[[Any, Any, Any], None]
    device_name: Callable[[], str]
    peak_memory: Callable[[], Any]
    memory_stats: Callable[[], Any]
    seed: Callable[[int], None] = _nothing
    rng_state: Callable[[], Any] = _nothing
    set_rng_state: Callable[[Any], None] = _nothing
    tells_seed_only: bool = False
    worker_start: str | None = None
    no_fp16: str = ""
    passed_over: str = ""

    def device_string(self, local_rank: int) -> str:
        """Such as cuda:3, xla:3, gcu:3, cpu."""
        return self.device.format(n=local_rank)

    def device_ids(self, local_rank: int) -> list[int] | None:
        """What DistributedDataParallel gets for a module on the device; None on the CPU, where it refuses them."""
        return [local_rank] if self.takes_device_ids else None


def load_torch_gcu() -> tuple[Any, str]:
    """(torch_gcu, ""), or (None, why it cannot be used); importing it registers the device and the backend eccl."""
    if importlib.util.find_spec("torch_gcu") is None:
        cards = sorted(glob.glob(GCU_FILES))
        return None, NOT_INSTALLED + (f", though this node has {cards[0]}" if cards else "")
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
        raise UserError(f"device=cuda: {_why_no_cuda(torch)}, or use device=cpu")
    gcu, problem = load_gcu()
    if gcu is not None and _has_devices(torch, gcu):
        return _gcu_i3x(torch) if hasattr(torch, "gcu") else _gcu_t2x(gcu)
    if gcu is not None:
        problem = NO_CARD
    if asked == "gcu":
        raise UserError(f"device=gcu: {problem}; {INSTALL_GCU}, or use device=cpu")
    return replace(_cpu(torch), passed_over=_passed_over(torch, problem))


def _passed_over(torch: Any, gcu_problem: str) -> str:  # noqa: ANN401
    cards = sorted(glob.glob(CUDA_FILES))
    if cards:
        return f"this node has {cards[0]}, but {_why_no_cuda(torch)}"
    return "" if gcu_problem == NOT_INSTALLED else f"{gcu_problem}; {INSTALL_GCU}"


def _why_no_cuda(torch: Any) -> str:  # noqa: ANN401
    if getattr(torch.version, "cuda", None):
        return "no NVIDIA device or driver is visible to torch (see nvidia-smi, CUDA_VISIBLE_DEVICES)"
    return f"torch {torch.__version__} is built without CUDA; install a CUDA build"


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
        autocast=lambda dtype: torch.autocast("cuda", dtype=getattr(torch, dtype)),
        # Older cards compute bf16 by emulation, slower than fp32.
        precisions=lambda: (
            ("fp32", "bf16", "fp16") if torch.cuda.get_device_capability() >= (8, 0) else ("fp32", "fp16")
        ),
        scaler=lambda: _stock_scaler(torch)("cuda") if _stock_scaler(torch) else torch.cuda.amp.GradScaler(),
        step=_plain_step,
        device_name=lambda: str(torch.cuda.get_device_name()),
        peak_memory=lambda: torch.cuda.max_memory_allocated(),  # noqa: PLW0108 -- looked up when it is asked for
        rng_state=lambda: torch.cuda.get_rng_state(),  # noqa: PLW0108 -- as above
        set_rng_state=lambda state: torch.cuda.set_rng_state(state),  # noqa: PLW0108 -- as above
        memory_stats=lambda: torch.cuda.memory_stats(),  # noqa: PLW0108 -- as above
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
        autocast=lambda dtype: torch.autocast("gcu", dtype=getattr(torch, dtype)),
        precisions=lambda: ("fp32", "bf16", "fp16") if torch.gcu.is_bf16_supported() else ("fp32", "fp16"),
        scaler=lambda: torch.gcu.amp.GradScaler(),  # noqa: PLW0108 -- looked up when fp16 is asked for
        step=_plain_step,
        device_name=str,
        peak_memory=getattr(torch.gcu, "max_memory_allocated", _nothing),
        rng_state=lambda: torch.gcu.get_rng_state(),  # noqa: PLW0108 -- as above
        set_rng_state=lambda state: torch.gcu.set_rng_state(state),  # noqa: PLW0108 -- as above
        memory_stats=getattr(torch.gcu, "memory_stats", _nothing),
    )


def _gcu_t2x(gcu: Any) -> Accelerator:  # noqa: ANN401
    """
    Not verified on hardware. torch 1.10 with the vendor's forks of c10d and DDP; stock ones never know eccl here.

    The graph is lazy: nothing runs until optimizer_step or unlazy. The mode follows the vendor's own training scripts.
    """
    distributed = importlib.import_module("torch_gcu.distributed")
    parallel = importlib.import_module("torch_gcu.nn.parallel")
    torch = importlib.import_module("torch")
    seeded = [0]

    def seed(number: int) -> None:
        seeded[0] = number % 2**32  # it takes no more
        gcu.manual_seed_all(seeded[0])

    def step(optimizer: Any, loss: Any, model: Any) -> None:  # noqa: ANN401
        mode = gcu.JitRunMode.ASYNC if distributed.is_initialized() else gcu.JitRunMode.SAFEASYNC
        gcu.optimizer_step(optimizer, [loss], mode=mode, model=model)

    return Accelerator(
        name="gcu-t2x",
        device="xla:{n}",
        backend="eccl",
        distributed=distributed,
        data_parallel=parallel.DistributedDataParallel,
        takes_device_ids=True,  # with None it puts a replica on every card of the node, in every rank
        own_rendezvous=True,
        count=gcu.device_count,
        set_device=gcu.set_device,
        synchronize=gcu.synchronize,
        autocast=lambda dtype: gcu.amp.autocast(dtype=getattr(torch, dtype)),
        precisions=lambda: ("fp32", "bf16"),
        scaler=_nothing,
        step=step,
        device_name=str,
        peak_memory=getattr(gcu, "max_memory_allocated", _nothing),
        seed=seed,
        rng_state=lambda: torch.tensor(list(seeded[0].to_bytes(4, "little")), dtype=torch.uint8),
        set_rng_state=lambda state: seed(int.from_bytes(bytes(state.tolist()), "little")),
        tells_seed_only=True,
        worker_start="spawn",  # as the vendor's own training scripts do
        no_fp16=NO_SCALER_T2X,
        memory_stats=getattr(gcu, "memory_stats", _nothing),
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
        autocast=lambda dtype: torch.autocast("cpu", dtype=getattr(torch, dtype)),
        precisions=lambda: ("fp32", "bf16", "fp16") if _stock_scaler(torch) else ("fp32", "bf16"),
        scaler=lambda: _stock_scaler(torch)("cpu"),
        step=_plain_step,
        device_name=str,
        peak_memory=lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        memory_stats=_nothing,
    )


def autocast(accelerator: Accelerator, precision: str) -> ContextManager[Any]:
    """The block the forward pass runs in: bf16 or fp16 where asked for, else as it is."""
    dtypes = {"bf16": "bfloat16", "fp16": "float16"}
    return accelerator.autocast(dtypes[precision]) if precision in dtypes else contextlib.nullcontext()


def _stock_scaler(torch: Any) -> Any:  # noqa: ANN401
    """GradScaler for any device, of torch >= 2.3; None before, when there was one for cuda alone."""
    return getattr(getattr(torch, "amp", None), "GradScaler", None)


def _plain_step(optimizer: Any, loss: Any, model: Any) -> None:  # noqa: ANN401, ARG001 -- the lazy row needs all three
    optimizer.step()
