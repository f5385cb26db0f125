"""
MMEngine where there is no CUDA: what it takes for granted of CUDA is asked of the accelerator that is there.

It knows some accelerators besides; with one of these all stays as it is, but for `launcher='slurm'`. The gcu paths
follow the vendor's published sources (trainer/runtime/accelerators.py) and were not verified on hardware.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..errors import TrainerError, UserError, report
from ..runtime.accelerators import Accelerator, choose
from .devices import kinds_of, local_rank, model_is_left_on_the_cpu, there_is_only_the_cpu

TIMEOUT = timedelta(minutes=30)  # torch's own for gloo
PLACED = ("rank", "world_size", "init_method", "store")  # what init_process_group is told of the rank's place: orch's

# `Any` below stands for MMEngine's and torch's classes, which are not imported here.


@functools.lru_cache(maxsize=None)
def unknown_to_mmengine() -> Accelerator | None:
    """The CPU, or an accelerator that MMEngine takes for one; None where it has found one itself."""
    found = getattr(sys.modules["mmengine.device.utils"], "DEVICE", None)
    return choose("auto", importlib.import_module("torch")) if found == "cpu" else None


def find_device(module: Any) -> None:  # noqa: ANN401
    """get_device() names the device that models are moved to."""
    accelerator = unknown_to_mmengine()
    if accelerator is not None and accelerator.name != "cpu":
        module.DEVICE = accelerator.device_string(local_rank())


def join_ranks(module: Any) -> None:  # noqa: ANN401
    """init_dist goes the way of the shared trainer: device, rendezvous, group, self-test; as orch has placed the rank."""
    known, accelerator = module._init_dist_pytorch, unknown_to_mmengine()  # noqa: SLF001 -- there is no other name

    def init(backend: str, port: object = None, **kwargs: Any) -> None:  # noqa: ARG001, ANN401 -- orch has chosen the port
        if accelerator is None or kwargs.get("init_backend", "torch") not in ("torch", "deepspeed"):
            known(backend, **kwargs)
            return
        if accelerator.name == "cpu":
            there_is_only_the_cpu("MMEngine", accelerator)
        if "nccl" in backend or backend == "gloo":  # mpi and what people bring along stay
            backend = accelerator.backend
        _join(replace(accelerator, backend=backend), **kwargs)

    # That for Slurm asks scontrol and SLURM_* for what RANK, LOCAL_RANK, WORLD_SIZE and MASTER_* say already.
    module._init_dist_slurm = init  # noqa: SLF001
    if accelerator is not None:
        module._init_dist_pytorch = init  # noqa: SLF001
        take_collectives(module)
        _communicate_on_the_device(module, accelerator)


def _join(accelerator: Accelerator, *, init_backend: str = "torch", timeout: timedelta = TIMEOUT, **more: Any) -> None:  # noqa: ANN401
    from ..runtime.init import initialise_on  # noqa: PLC0415 -- a torch without it imports MMEngine as well

    for_torch = {name: value for name, value in more.items() if name not in PLACED} if init_backend == "torch" else {}
    try:
        group = initialise_on(lambda: accelerator, timeout.total_seconds(), os.environ, **for_torch)
    except TrainerError as exc:
        raise SystemExit(report(exc, os.environ)) from exc
    sys.stderr.write(f"{group.greeting}\n")
    if init_backend == "deepspeed":  # it takes the group that is there
        importlib.import_module("deepspeed").init_distributed(accelerator.backend, timeout=timeout, **more)


def take_collectives(module: Any) -> None:  # noqa: ANN401
    """A T20 has a torch.distributed of its own."""
    accelerator = unknown_to_mmengine()
    if accelerator is not None:
        module.torch_dist = accelerator.distributed


def _communicate_on_the_device(module: Any, accelerator: Accelerator) -> None:  # noqa: ANN401
    known = module.get_comm_device

    def get_comm_device(group: Any = None) -> Any:  # noqa: ANN401
        if module.get_backend(group) != accelerator.backend:
            return known(group)
        return importlib.import_module("torch").device(accelerator.device_string(local_rank()))

    module.get_comm_device = get_comm_device


def take_device_ids(module: Any) -> None:  # noqa: ANN401
    """Wrappers are given device_ids=[LOCAL_RANK]; a module on the CPU goes without, one on a T20 never does."""
    accelerator = unknown_to_mmengine()
    if accelerator is None:
        return
    wrapper = module.MMDistributedDataParallel
    construct = wrapper.__init__

    @functools.wraps(construct)
    def construct_where_it_is(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        kinds = kinds_of(module.parameters())
        if kinds <= {"cpu"}:
            if accelerator.name != "cpu":
                model_is_left_on_the_cpu(accelerator)
            kwargs.update({name: None for name in ("device_ids", "output_device") if name in kwargs})
        elif kinds == {"xla"}:
            kwargs["device_ids"] = [local_rank()]  # without, there would be a replica on every card of the node
        construct(self, module, *args, **kwargs)

    wrapper.__init__ = construct_where_it_is
    if accelerator.data_parallel is not module.DistributedDataParallel:
        wrapper.__bases__ = (accelerator.data_parallel,)  # a T20's own


def take_steps(module: Any) -> None:  # noqa: ANN401
    """A T20 computes when its own step is made, for which it has to know the loss and the model."""
    accelerator = unknown_to_mmengine()
    if accelerator is None or accelerator.name != "gcu-t2x":
        return
    step_of_t20, wrapper = accelerator.step, module.OptimWrapper
    backward, optim_context = wrapper.backward, wrapper.optim_context

    def backward_from(self: Any, loss: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.orch_loss = loss
        backward(self, loss, **kwargs)

    def context_of(self: Any, model: Any) -> Any:  # noqa: ANN401
        self.orch_model = model
        return optim_context(self, model)

    def step(self: Any, **_: Any) -> None:  # noqa: ANN401
        if self.clip_grad_kwargs:
            self._clip_grad()
        step_of_t20(self.optimizer, self.orch_loss, self.orch_model)

    def new(kind: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        if kind.step is not step:  # AmpOptimWrapper and ApexOptimWrapper
            raise UserError(
                f"{kind.__name__} makes a step of its own, by which a T20 computes nothing: use type='OptimWrapper'"
            )
        return object.__new__(kind)

    wrapper.backward, wrapper.optim_context, wrapper.step = backward_from, context_of, step
    wrapper.__new__ = new
