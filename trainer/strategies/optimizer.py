"""The optimizer of every strategy but for DeepSpeed's offload."""

from __future__ import annotations

from typing import Any, Dict, List

import torch

from trainer.config import OptimConfig
from trainer.errors import UserError
from trainer.strategies.building import shape_of


def make_optimizer(model: torch.nn.Module, lr: float, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices and embeddings only."""
    fused = {"fused": True} if config.fused else {}
    try:
        return torch.optim.AdamW(decay_groups(model, config.weight_decay), lr=lr, betas=config.betas, **fused)
    except (RuntimeError, TypeError) as exc:  # the device, or this torch, has none
        if not config.fused:
            raise
        raise UserError(f"optim.fused=true: no fused AdamW here: {exc}; leave it out") from exc


def decay_groups(model: torch.nn.Module, weight_decay: float) -> List[Dict[str, Any]]:
    """Matrices and embeddings, then everything else."""
    matrices = [one for one in model.parameters() if len(shape_of(one)) > 1]
    others = [one for one in model.parameters() if len(shape_of(one)) <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
