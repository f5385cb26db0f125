"""
MMEngine without CUDA: its calls of torch.cuda are redirected to the node's accelerator.

With an accelerator that MMEngine knows, only `launcher='slurm'` and the collection of results are changed. The gcu paths
follow the vendor's published sources (trainer/runtime/accelerators) and were not verified on hardware.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import pickle
import re
import sys
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Mapping

from ..errors import TrainerError, UserError, report
from ..runtime.accelerators import Accelerator, choose
from ..runtime.rank import Rank
from .devices import kinds_of, local_rank, warn_cpu_only, warn_model_on_cpu

if TYPE_CHECKING:
    from ..runtime.group import Group

TIMEOUT = timedelta(minutes=30)  # torch's own for gloo
PIECE_BYTES = 64 << 20  # of results, on each device at once
START_VARIABLE = "ORCH_START_TIMEOUT"
GROUP_ARGUMENTS = ("rank", "world_size", "init_method", "store")  # of init_process_group, which initialise_on() sets

# `Any` below stands for MMEngine's and torch's classes, which are not imported here.


@functools.lru_cache(maxsize=None)
def unknown_to_mmengine() -> Accelerator | None:
    """Return the CPU, or an accelerator that MMEngine takes for a CPU; None if MMEngine has found a device itself."""
    found = getattr(sys.modules["mmengine.device.utils"], "DEVICE", None)
    return choose("auto", importlib.import_module("torch")) if found == "cpu" else None


def find_device(module: Any) -> None:
    """Make get_device() return the device that models are moved to."""
    accelerator = unknown_to_mmengine()
    if accelerator is not None and accelerator.name != "cpu":
        module.DEVICE = accelerator.device_string(local_rank())


def join_ranks(module: Any) -> None:
    """Make init_dist do what the shared trainer does: device, rendezvous, group, self-test, with orch's ranks."""
    known, accelerator = module._init_dist_pytorch, unknown_to_mmengine()  # there is no other name

    def init(backend: str, port: object = None, **kwargs: Any) -> None:  # noqa: ARG001 -- orch has chosen the port
        if accelerator is None or kwargs.get("init_backend", "torch") not in ("torch", "deepspeed"):
            known(backend, **kwargs)
            return
        if accelerator.name == "cpu":
            warn_cpu_only("MMEngine", accelerator)
        if "nccl" in backend or backend == "gloo":  # mpi and custom backends stay
            backend = accelerator.backend
        # Kept for the life of the process, as nothing else holds rank 0's store if the group has its own one.
        module.orch_group = _join(accelerator.changed(backend=backend), **kwargs)

    # MMEngine's function for Slurm would query scontrol and SLURM_* for the values of RANK, LOCAL_RANK, WORLD_SIZE and MASTER_*.
    module._init_dist_slurm = init
    if accelerator is not None:
        module._init_dist_pytorch = init
        take_collectives(module)
        _communicate_on_the_device(module, accelerator)
        _note_own_groups(accelerator)


def _note_own_groups(accelerator: Accelerator) -> None:
    """Note the place of the call by which a script makes a group of torch's on a T20, which MMEngine does not use there."""
    stock = importlib.import_module("torch").distributed
    if accelerator.distributed is stock or not stock.is_available():
        return
    make = stock.init_process_group

    @functools.wraps(make)
    def make_and_note(*args: Any, **kwargs: Any) -> Any:
        result = make(*args, **kwargs)
        caller = traceback.extract_stack(limit=2)[0]
        make_and_note.caller = f"{os.path.relpath(caller.filename)}:{caller.lineno}"  # type: ignore[attr-defined]
        return result

    stock.init_process_group = make_and_note


def _own_group(accelerator: Accelerator, error: TrainerError) -> TrainerError:
    """The cause of an error of the rendezvous if a group of the script's holds the port; else the error itself."""
    stock = importlib.import_module("torch").distributed
    has_own = accelerator.distributed is not stock and stock.is_available() and stock.is_initialized()
    if not has_own or "in use" not in str(error):
        return error
    caller = getattr(stock.init_process_group, "caller", "")
    return UserError(
        f"this script has made its own {stock.get_backend()} group{caller and ' at '}{caller}, which holds the port of the "
        f"rendezvous and carries no {accelerator.device.partition(':')[0]} tensors. MMEngine makes the group of the cards "
        f"({accelerator.backend}) itself here: delete the call of torch.distributed.init_process_group"
        f"{caller and ' at '}{caller}, and the lines that go with it"
    )


def _join(accelerator: Accelerator, *, init_backend: str = "torch", timeout: timedelta = TIMEOUT, **more: Any) -> Group:
    from ..runtime.init import initialise_on  # a torch without it imports MMEngine as well

    for_torch = (
        {name: value for name, value in more.items() if name not in GROUP_ARGUMENTS} if init_backend == "torch" else {}
    )
    try:
        group = initialise_on(
            lambda: accelerator,
            timeout.total_seconds(),
            os.environ,
            start_timeout_s=_start_timeout_s(os.environ),
            **for_torch,
        )
    except TrainerError as exc:
        sys.exit(report(_own_group(accelerator, exc), os.environ))
    if group.rendezvous is not None:
        group.rendezvous.leave()  # a script may end at once, and with rank 0 its store, while others still read from that
    sys.stderr.write(f"{group.ready_message}\n")
    if init_backend == "deepspeed":  # it uses the existing group
        importlib.import_module("deepspeed").init_distributed(accelerator.backend, timeout=timeout, **more)
    return group


def _start_timeout_s(environ: Mapping[str, str]) -> float:
    """The limit of the group's start: ORCH_START_TIMEOUT, in seconds, or that of the shared trainer."""
    from ..runtime.init import START_S

    text = environ.get(START_VARIABLE)
    if text is None:
        return START_S
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) or not float(text):
        raise UserError(f"{START_VARIABLE}={text}: allowed: a number of seconds above 0, up to 999999")
    return float(text)


def take_collectives(module: Any) -> None:
    """Use the T20's own torch.distributed."""
    accelerator = unknown_to_mmengine()
    if accelerator is not None:
        module.torch_dist = accelerator.distributed


def change_collectives(module: Any) -> None:
    """Change mmengine.dist.dist: the T20's collectives, and results of evaluations by the group if the ranks share no folder."""
    take_collectives(module)
    accelerator = unknown_to_mmengine()
    if accelerator is not None and not hasattr(accelerator.distributed, "broadcast_object_list"):
        carry_objects(module)
    if "ORCH_SHARED_DIR" not in os.environ:
        collect_by_group(module)


def carry_objects(module: Any) -> None:
    """Carry objects as bytes through the group: a T20's library has no collectives of objects, and every evaluation needs one."""
    all_gather, broadcast = module.all_gather_object, module.broadcast_object_list

    def gather(data: Any) -> list[Any]:
        return [pickle.loads(part) for part in _group().gather_bytes(pickle.dumps(data))]  # noqa: S301 -- from ranks of this job

    def all_gather_object(data: Any, group: Any = None) -> Any:
        is_alone = group is not None or module.get_world_size() == 1
        return all_gather(data, group) if is_alone else gather(data)

    def broadcast_object_list(data: list[Any], src: int = 0, group: Any = None) -> None:
        if group is not None or module.get_world_size() == 1:
            broadcast(data, src, group)
        else:
            data[:] = gather(data if module.get_rank() == src else [])[src]

    module.all_gather_object, module.broadcast_object_list = all_gather_object, broadcast_object_list


def _group() -> Group:
    """The group that init_dist has made, or the one that the script has made by the vendor's library itself."""
    from ..runtime.group import Group

    made: Group | None = getattr(sys.modules["mmengine.dist.utils"], "orch_group", None)
    accelerator = unknown_to_mmengine()
    assert accelerator is not None, "only collectives of such an accelerator are changed"
    device = importlib.import_module("torch").device(accelerator.device_string(local_rank()))
    return made or Group(Rank.from_env(os.environ), accelerator, device, None, "")


def collect_by_group(module: Any) -> None:
    """
    Collect the results of an evaluation through the group: MMEngine writes them to files below the current folder.

    In pieces, because MMEngine's own way through the group puts the results of all ranks on every device.
    """
    by_files = module.collect_results_cpu

    def collect_results_cpu(result_part: list[Any], size: int, tmpdir: str | None = None) -> list[Any] | None:
        rank, world_size = module.get_dist_info()
        if world_size == 1 or tmpdir is not None:  # a folder of the user, who knows that it is shared
            results: list[Any] | None = by_files(result_part, size, tmpdir)
            return results
        data = pickle.dumps(result_part)
        parts = []
        for source, length in enumerate(module.all_gather_object(len(data))):
            received = _broadcast_bytes(module, data if rank == source else None, length, source, is_kept=rank == 0)
            parts.append(pickle.loads(received) if rank == 0 else [])  # noqa: S301 -- from a rank of this job
        if rank != 0:
            return None
        turns = itertools.chain.from_iterable(itertools.zip_longest(*parts))  # parts differ in length
        return [result for result in turns if result is not None][:size]  # samples beyond `size` are padding

    module.collect_results_cpu = collect_results_cpu


def _broadcast_bytes(module: Any, data: bytes | None, length: int, source: int, *, is_kept: bool) -> bytes:
    """Send bytes from the rank that has them to all ranks; return them if they are kept here."""
    torch, received = importlib.import_module("torch"), bytearray()
    for begin in range(0, length, PIECE_BYTES):
        size = min(PIECE_BYTES, length - begin)
        if data is None:
            piece = torch.empty(size, dtype=torch.uint8)
        else:
            piece = torch.frombuffer(bytearray(data[begin : begin + size]), dtype=torch.uint8)
        module.broadcast(piece, source)
        if is_kept:
            received += piece.numpy().tobytes()
    return bytes(received)


def _communicate_on_the_device(module: Any, accelerator: Accelerator) -> None:
    known = module.get_comm_device

    def get_comm_device(group: Any = None) -> Any:
        if module.get_backend(group) != accelerator.backend:
            return known(group)
        return importlib.import_module("torch").device(accelerator.device_string(local_rank()))

    module.get_comm_device = get_comm_device


def take_device_ids(module: Any) -> None:
    """MMEngine passes device_ids=[LOCAL_RANK] to wrappers; drop it for a module on the CPU, require it on a T20."""
    accelerator = unknown_to_mmengine()
    if accelerator is None:
        return
    wrapper = module.MMDistributedDataParallel
    construct = wrapper.__init__

    @functools.wraps(construct)
    def construct_on_its_device(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        kinds = kinds_of(module.parameters())
        if kinds <= {"cpu"}:
            if accelerator.name != "cpu":
                warn_model_on_cpu(accelerator)
            kwargs.update({name: None for name in ("device_ids", "output_device") if name in kwargs})
        elif accelerator.name != "cpu":  # without it, a T20 would put a replica on every card of the node
            kwargs["device_ids"] = accelerator.device_ids(local_rank())
        construct(self, module, *args, **kwargs)

    wrapper.__init__ = construct_on_its_device
    if accelerator.data_parallel is not module.DistributedDataParallel:
        wrapper.__bases__ = (accelerator.data_parallel,)  # a T20's own


def take_steps(module: Any) -> None:
    """A T20 computes in its own optimizer step, which needs the loss and the model."""
    accelerator = unknown_to_mmengine()
    if accelerator is None or accelerator.name != "gcu-t2x":
        return
    step_of_t20, wrapper = accelerator.step, module.OptimWrapper
    backward, optim_context = wrapper.backward, wrapper.optim_context

    def backward_from(self: Any, loss: Any, **kwargs: Any) -> None:
        self.orch_loss = loss
        backward(self, loss, **kwargs)

    def context_of(self: Any, model: Any) -> Any:
        self.orch_model = model
        return optim_context(self, model)

    def step(self: Any, **_: Any) -> None:
        if self.clip_grad_kwargs:
            self._clip_grad()
        step_of_t20(self.optimizer, self.orch_loss, self.orch_model)

    def new(kind: Any, *_: Any, **__: Any) -> Any:
        if kind.step is not step:  # AmpOptimWrapper and ApexOptimWrapper
            raise UserError(
                f"{kind.__name__} overrides the optimizer step, and its own step computes nothing on a T20: use type='OptimWrapper'"
            )
        return object.__new__(kind)

    wrapper.backward, wrapper.optim_context, wrapper.step = backward_from, context_of, step
    wrapper.__new__ = new


def load_to_the_cpu(module: Any) -> None:
    """Read checkpoints to the CPU on a T20, whose torch maps no file to its cards; what is loaded from them goes to its own device."""
    accelerator = unknown_to_mmengine()
    if accelerator is None or accelerator.name != "gcu-t2x":
        return
    loader = module.CheckpointLoader
    load = loader.load_checkpoint

    def load_checkpoint(filename: str, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        of_cards = str(map_location).startswith(accelerator.device.partition(":")[0])
        return load(filename, "cpu" if of_cards else map_location, *args, **kwargs)

    loader.load_checkpoint = staticmethod(load_checkpoint)
