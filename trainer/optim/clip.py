"""Gradient clipping by the global norm."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

import torch

CLIP_MARGIN = 1e-6  # torch adds it to the norm before dividing


def clip_gradients(parameters: Sequence[torch.nn.Parameter], limit: float) -> float:
    """
    Scale all gradients down if their global norm is above `limit`; returns the norm before.

    The result equals the result of torch's clip_grad_norm_ bit for bit, without its multiplication by 1 below the limit.
    """
    tools: Any = torch.nn.utils
    if not hasattr(tools, "get_total_norm"):  # torch < 2.6
        return float(tools.clip_grad_norm_(parameters, limit))
    norm = tools.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if not float(norm) + CLIP_MARGIN <= limit:
        tools.clip_grads_with_norm_(parameters, limit, norm)
    return float(norm)


def clip_sharded_gradients(parameters: Iterable[torch.nn.Parameter], limit: float) -> float:
    """Clip DTensors; returns the norm over the shards of all ranks."""
    norm: Any = torch.nn.utils.clip_grad_norm_(parameters, limit)
    return float(norm.full_tensor())
