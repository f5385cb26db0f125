"""The optimizer of every strategy but for DeepSpeed's offload."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import torch

from trainer.config.config import OptimConfig
from trainer.errors import UserError
from trainer.parallel.building import shape_of

CLIP_MARGIN = 1e-6  # what torch adds to the norm before it divides by it


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


def clip_gradients(parameters: Sequence[torch.nn.Parameter], limit: float) -> float:
    """
    Scale all gradients down together where their norm is above `limit`; the norm before.

    As torch's clip_grad_norm_, bit for bit, which multiplies by 1 where nothing is to be clipped.
    """
    tools: Any = torch.nn.utils
    if not hasattr(tools, "get_total_norm"):  # torch < 2.6
        return float(tools.clip_grad_norm_(parameters, limit))
    norm = tools.get_total_norm([one.grad for one in parameters if one.grad is not None])
    if not float(norm) + CLIP_MARGIN <= limit:
        tools.clip_grads_with_norm_(parameters, limit, norm)
    return float(norm)
