"""Building and initialising the model of a task for a strategy."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from typing import Any, Callable, Dict, List, Tuple

import torch

from trainer.config.config import TrainConfig
from trainer.errors import UserError
from trainer.optim.optimizer import whole_shape
from trainer.parallel.activation_checkpoint import recompute
from trainer.parallel.fp8 import use_fp8
from trainer.runtime.accelerators import Accelerator
from trainer.runtime.group import Group
from trainer.runtime.seeds import seed_everything
from trainer.tasks.base import Task, draws_weights, has_initialise


def build_whole(group: Group, config: TrainConfig, task: Task) -> torch.nn.Module:
    """
    Build the whole model on this rank's device, the same on all ranks.
    Raises UserError: the same on all ranks; activation_checkpointing needs blocks, and the task names none.
    """
    seed_everything(config.seed, group.accelerator)
    empty = build_fillable(task, config)
    if empty is not None:
        model = empty.to_empty(device=group.device)
        fill(task, model, lambda weight, whole: weight.copy_(whole()))
    else:
        model = build_plain(task, config).to(group.device)  # before it is wrapped: DDP checks its device
        if has_initialise(task):
            fill(task, model, lambda weight, whole: weight.copy_(whole()))
    warn_if_on_cpu(model, group.accelerator, group.rank.global_rank)
    return model


def build_fillable(task: Task, config: TrainConfig) -> torch.nn.Module | None:
    """
    Build on `meta` if every tensor is an untied parameter that `fill` can initialise, else None.

    `to_empty` would untie shared weights and leave buffers uninitialised; and DeepSpeed would compute the buffers of a
    model that it shards while building in the precision of the weights.
    """
    if not has_initialise(task) or not hasattr(torch.device, "__enter__"):  # torch >= 2.0
        return None
    with torch.device("meta"):
        model = build_plain(task, config)
    attributes = (value for module in model.modules() for value in vars(module).values())
    has_others = any(True for _ in model.buffers()) or any(isinstance(value, torch.Tensor) for value in attributes)
    return None if has_others or any(count > 1 for count in name_counts(model).values()) else model


def materialise(model: torch.nn.Module, device: torch.device) -> None:
    """Give the parameters on `meta` memory of zeros on the device, move the rest there, and keep tied ones tied."""
    modules = [(module, name) for module in model.modules() for name in module._parameters]  # noqa: SLF001 -- also tied ones
    tied: Dict[int, List[Tuple[torch.nn.Module, str]]] = {}
    for module, name in modules:
        tied.setdefault(id(getattr(module, name)), []).append((module, name))
    kept = [getattr(*owner[0]) for owner in tied.values()]  # an id stays unique while its object lives
    model._apply(  # type: ignore[no-untyped-call]  # noqa: SLF001
        lambda tensor: torch.zeros_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
    )
    del kept
    for first, *further in tied.values():
        for module, name in further:
            setattr(module, name, getattr(*first))


def name_counts(model: torch.nn.Module) -> Counter[torch.nn.Parameter]:
    """Count the names of each parameter: a tied one has several; torch >= 2.0."""
    modules = model.named_modules(remove_duplicate=False)
    return Counter(parameter for _, module in modules for parameter in module.parameters(recurse=False))


def build_plain(task: Task, config: TrainConfig) -> torch.nn.Module:
    """Build as the task does, and prepare()."""
    return prepare(task, config, task.build_model())


def prepare(task: Task, config: TrainConfig, model: torch.nn.Module) -> torch.nn.Module:
    """Set up fp8 and activation checkpointing of the model's blocks if configured; returns the model."""
    blocks = task.blocks(model)
    if config.activation_checkpointing and not blocks:
        kind = str(config.activation_checkpointing).lower()
        raise UserError.agreed(f"activation_checkpointing={kind}: task={config.task} names no blocks(); leave it out")
    if config.fp8:
        use_fp8(config, blocks)
    recompute(config, blocks)
    return model


def fill(task: Task, model: torch.nn.Module, put: Callable[[Any, Callable[[], torch.Tensor]], object]) -> None:
    """Call `put` for each parameter, with a function that returns its initial values, whole and on the CPU."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            put(parameter, functools.partial(initial_values, task, name, parameter))


def initial_values(task: Task, name: str, parameter: torch.Tensor) -> torch.Tensor:
    """The values of a parameter, or of the whole of which it is a shard, on the CPU."""
    weight = torch.zeros(whole_shape(parameter))
    if draws_weights(task):
        task.initialise(name, weight)
    return weight


def sizes_of(model: torch.nn.Module) -> Dict[str, int]:
    """Number of elements of each parameter, by name."""
    return {name: whole_shape(parameter).numel() for name, parameter in model.named_parameters()}


def warn_if_on_cpu(model: torch.nn.Module, accelerator: Accelerator, rank: int) -> None:
    """Warn of parameters on the CPU: training would continue, slowly and partly on the wrong device."""
    left = [name for name, parameter in model.named_parameters() if parameter.device.type == "cpu"]
    if accelerator.name != "cpu" and left:
        sys.stderr.write(
            f"WARNING: rank {rank}: {len(left)} parameters are on the CPU although {accelerator.name} was requested "
            f"(first: {left[0]}): make all of them in build_model(), and leave them where the trainer moves them\n"
        )
