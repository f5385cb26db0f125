"""
The kinds of devices that a rank trains on: Cpu, Cuda, GcuI3x (S60, L300), GcuT2x (T20, T21, i20); choose() selects one.

The two GCU classes follow the vendor's published sources and were not verified on hardware. No process group is needed
here, and torch is an argument, so that every class can be tested without its device.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import glob
import importlib
import importlib.util
import os
import resource
import sys
import time
from typing import Any, Callable, ContextManager, Iterable, List, Mapping, Optional, Sequence

from ..errors import UserError  # relative: scripts import this package under another name (trainer/scripts)
from ..values import Foreign, Model

CUDA_FILES = "/dev/nvidia[0-9]*"
GCU_FILES = "/dev/gcu*"
NOT_INSTALLED = "torch_gcu is not installed for this Python"
INSTALL_GCU = "install TopsRider and its torch_gcu for this Python"
NO_CARD = "torch_gcu finds no device (efsmi, /dev/gcu*, TOPS_VISIBLE_DEVICES)"
NO_SCALER_T2X = (
    "the card has it, but torch_gcu's own GradScaler calls unlazy() with an argument that this refuses, so that no step can "
    "be skipped after an overflow; use bf16 or fp32"
)
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


def stock_scaler(torch: Foreign) -> Foreign:
    """Return torch's GradScaler for any device, of torch >= 2.3; None before, when there was one for CUDA only."""
    return getattr(getattr(torch, "amp", None), "GradScaler", None)


def call_if_present(module: Foreign, function: str) -> Foreign:
    """Call a function that a vendor's module may lack; None without it."""
    return getattr(module, function, lambda: None)()


def load_torch_gcu() -> tuple[Any, str]:
    """Import torch_gcu, which registers the device and the backend eccl: (torch_gcu, ""), or (None, the problem)."""
    if importlib.util.find_spec("torch_gcu") is None:
        cards = sorted(glob.glob(GCU_FILES))
        return None, NOT_INSTALLED + (f", though this node has {cards[0]}" if cards else "")
    try:
        return importlib.import_module("torch_gcu"), ""
    except (ImportError, OSError, RuntimeError) as exc:  # a missing driver library shows as any of the three
        return None, f"torch_gcu is installed but cannot be imported: {exc}"


def choose(requested: str, torch: Foreign, load_gcu: Callable[[], tuple[Any, str]] = load_torch_gcu) -> Accelerator:
    """
    Return the accelerator for `requested`: auto, cuda, gcu or cpu. auto takes the first that is present, in this order.
    Raises UserError: cuda or gcu was requested and is not present; the message has the remedy.
    """
    if requested == "cpu":
        return Cpu(torch)
    # After the vendor's migration (trainer/scripts/gcu.py), torch.cuda is torch.gcu.
    is_gcu = getattr(sys.modules.get("torch_gcu"), "is_transfer_to_gcu", False)
    if requested in ("auto", "cuda") and not is_gcu and torch.cuda.is_available() and torch.cuda.device_count() > 0:
        return Cuda(torch)
    if requested == "cuda":
        raise UserError(f"device=cuda: {_why_no_cuda(torch)}, or use device=cpu")
    gcu, problem = load_gcu()
    if gcu is not None:
        module = torch.gcu if hasattr(torch, "gcu") else gcu
        if module.is_available() and int(module.device_count()) > 0:
            return GcuI3x(torch) if hasattr(torch, "gcu") else GcuT2x(torch, gcu)
        problem = NO_CARD
    if requested == "gcu":
        raise UserError(f"device=gcu: {problem}; {INSTALL_GCU}, or use device=cpu")
    return Cpu(torch).changed(unusable_card=_unusable_card(torch, problem))


def _unusable_card(torch: Foreign, gcu_problem: str) -> str:
    cards = sorted(glob.glob(CUDA_FILES))
    if cards:
        return f"this node has {cards[0]}, but {_why_no_cuda(torch)}"
    return "" if gcu_problem == NOT_INSTALLED else f"{gcu_problem}; {INSTALL_GCU}"


def _why_no_cuda(torch: Foreign) -> str:
    if getattr(torch.version, "cuda", None):
        return "no NVIDIA device or driver is visible to torch (see nvidia-smi, CUDA_VISIBLE_DEVICES)"
    return f"torch {torch.__version__} is built without CUDA; install a CUDA build"
