"""
MMEngine where there is no CUDA: what it takes for granted of CUDA is asked of the accelerator that is there.

It knows some accelerators besides; with one of these all stays as it is, but for `launcher='slurm'`. The gcu paths
follow the vendor's published sources (trainer/accelerators.py) and were not verified on hardware.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

from ..accelerators import Accelerator, choose  # noqa: TID252 -- known under another name than `trainer`

# `Any` below stands for MMEngine's and torch's classes, which are not imported here.


@functools.lru_cache(maxsize=None)
def unknown_to_mmengine() -> Accelerator | None:
    """The CPU, or an accelerator that MMEngine takes for one; None where it has found one itself."""
    found = getattr(sys.modules["mmengine.device.utils"], "DEVICE", None)
    return choose("auto", importlib.import_module("torch")) if found == "cpu" else None


def local_rank() -> int:
    return int(os.environ["LOCAL_RANK"])


def find_device(module: Any) -> None:  # noqa: ANN401
    """get_device() names the device that models are moved to."""
    accelerator = unknown_to_mmengine()
    if accelerator is not None and accelerator.name != "cpu":
        module.DEVICE = accelerator.device_string(local_rank())


def join_ranks(module: Any) -> None:  # noqa: ANN401
    """init_dist takes the device first and then a backend that speaks for it, as orch has placed the rank."""
    known, accelerator = module._init_dist_pytorch, unknown_to_mmengine()  # noqa: SLF001 -- there is no other name

    def init(backend: str, port: object = None, **kwargs: Any) -> None:  # noqa: ARG001, ANN401 -- orch has chosen the port
        if accelerator is None:
            known(backend, **kwargs)
            return
        if accelerator.name == "cpu" and local_rank() == 0:
            why = accelerator.passed_over or "there is no CUDA device here that torch can use, and no GCU"
            sys.stderr.write(f"WARNING: {why}: MMEngine trains on the CPU\n")
        accelerator.set_device(local_rank())
        init_backend = kwargs.pop("init_backend", "torch")
        if "nccl" in backend or backend == "gloo":  # mpi and what people bring along stay
            backend = accelerator.backend
        if init_backend == "torch":
            accelerator.distributed.init_process_group(backend=backend, **kwargs)
        elif init_backend == "deepspeed":
            importlib.import_module("deepspeed").init_distributed(dist_backend=backend, **kwargs)
        else:
            known(backend, init_backend=init_backend, **kwargs)

    # That for Slurm asks scontrol and SLURM_* for what RANK, LOCAL_RANK, WORLD_SIZE and MASTER_* say already.
    module._init_dist_slurm = init  # noqa: SLF001
    if accelerator is not None:
        module._init_dist_pytorch = init  # noqa: SLF001
        take_collectives(module)
        _communicate_on_the_device(module, accelerator)


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
    wrapper = module.MMDistributedDataParallel
    construct = wrapper.__init__

    @functools.wraps(construct)
    def construct_where_it_is(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        kinds = {parameter.device.type for parameter in module.parameters()}
        if kinds <= {"cpu"}:
            kwargs.update({name: None for name in ("device_ids", "output_device") if name in kwargs})
        elif kinds == {"xla"}:
            kwargs["device_ids"] = [local_rank()]  # without, there would be a replica on every card of the node
        construct(self, module, *args, **kwargs)

    wrapper.__init__ = construct_where_it_is
    accelerator = unknown_to_mmengine()
    if accelerator is not None and accelerator.data_parallel is not module.DistributedDataParallel:
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

    wrapper.backward, wrapper.optim_context, wrapper.step = backward_from, context_of, step
