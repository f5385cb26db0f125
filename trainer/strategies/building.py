"""The model of a task, built and filled for the strategy that is to hold it."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict

import torch

from trainer.accelerators import Accelerator
from trainer.config import TrainConfig
from trainer.distributed import Group
from trainer.errors import UserError
from trainer.seeds import seed_everything
from trainer.strategies.recompute import recompute
from trainer.tasks.base import Task, fills


def build_whole(group: Group, config: TrainConfig, task: Task) -> torch.nn.Module:
    """
    The whole model on this rank's device, the same on all ranks.

    Raises:
        UserError: on all ranks alike; activation_checkpointing needs blocks, and the task names none.
    """
    seed_everything(config.seed % 2**63)
    if can_fill(task):
        model = build_empty(task, config).to_empty(device=group.device)
        fill(task, model, lambda weight, whole: weight.copy_(whole()))
    else:
        model = build_plain(task, config).to(group.device)  # before it is wrapped: DDP looks at where it is
        if fills(task):
            fill(task, model, lambda weight, whole: weight.copy_(whole()))
    warn_if_on_cpu(model, group.accelerator, group.place.rank)
    return model


def can_fill(task: Task) -> bool:
    """Whether a model can be built without memory, and given its values later."""
    return fills(task) and hasattr(torch.device, "__enter__")  # torch >= 2.0


def build_empty(task: Task, config: TrainConfig) -> torch.nn.Module:
    """Of shapes alone."""
    with torch.device("meta"):
        return build_plain(task, config)


def build_plain(task: Task, config: TrainConfig) -> torch.nn.Module:
    """As the task builds it, where the settings ask for it with its blocks recomputed."""
    model = task.build_model()
    blocks = task.blocks(model)
    if config.activation_checkpointing and not blocks:
        raise UserError.agreed(f"activation_checkpointing=true: task={config.task} names no blocks(); leave it out")
    recompute(config, blocks)
    return model


def fill(task: Task, model: torch.nn.Module, put: Callable[[Any, Callable[[], torch.Tensor]], object]) -> None:
    """Call `put` for each parameter, with a function that makes its first values, whole and on the CPU."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            put(parameter, functools.partial(_first_values, task, name, shape_of(parameter)))


def _first_values(task: Task, name: str, shape: torch.Size) -> torch.Tensor:
    weight = torch.empty(shape)
    task.initialise(name, weight)
    return weight


def sizes_of(model: torch.nn.Module) -> Dict[str, int]:
    """Numbers in each parameter, by name."""
    return {name: shape_of(one).numel() for name, one in model.named_parameters()}


def shape_of(parameter: torch.Tensor) -> torch.Size:
    """Of the whole, where ZeRO-3 has left a part."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def warn_if_on_cpu(
    model: torch.nn.Module, accelerator: Accelerator, rank: int, write: Callable[[str], object] = sys.stderr.write
) -> None:
    """Training would go on, slowly and on the wrong device, so say it loudly."""
    left = [name for name, one in model.named_parameters() if one.device.type == "cpu"]
    if accelerator.name != "cpu" and left:
        write(
            f"WARNING: rank {rank}: {len(left)} parameters are on the CPU although {accelerator.name} was asked for "
            f"(first: {left[0]}); this rank would train on the CPU\n"
        )
