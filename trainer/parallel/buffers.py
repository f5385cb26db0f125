"""Buffers, such as the running means of a BatchNorm, under strategies that do not synchronise them."""

from __future__ import annotations

from typing import Any, Dict, List

import torch

from trainer.config.config import TrainConfig
from trainer.errors import UserError
from trainer.runtime.group import Group


class Buffers:
    """The persistent buffers of a model. Create it before the model is sharded."""

    def __init__(self, model: torch.nn.Module) -> None:
        kept = set(model.state_dict())
        self.names = [name for name, _ in model.named_buffers() if name in kept]

    def broadcast(self, model: torch.nn.Module, group: Group) -> None:
        """Copy rank 0's buffers, which are saved, to all ranks, as DistributedDataParallel does."""
        if not self.names:
            return
        found: Dict[str, Any] = dict(model.named_buffers())
        same: Dict[torch.dtype, List[torch.Tensor]] = {}
        for name in self.names:
            same.setdefault(found[name].dtype, []).append(found[name])
        for some in same.values():
            flat = torch.cat([buffer.flatten() for buffer in some])
            group.accelerator.distributed.broadcast(flat, 0)
            parts: Any = flat.split([buffer.numel() for buffer in some])  # type: ignore[no-untyped-call]  # torch leaves it so
            for buffer, part in zip(some, parts):
                buffer.copy_(part.view_as(buffer))


def refuse_batch_norm(model: torch.nn.Module, config: TrainConfig) -> None:
    """Raise UserError for BatchNorm below fp32: its running means are fp32 and its weights would not be."""
    kind = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 -- what all of them are
    if config.precision != "fp32" and any(isinstance(module, kind) for module in model.modules()):
        raise UserError.agreed(
            f"precision={config.precision} with strategy={config.strategy} has the whole model compute in it, which "
            "BatchNorm does not: use strategy=ddp, or GroupNorm in the model"
        )
