"""Gradient clipping by the global norm."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

import torch

CLIP_MARGIN = 1e-6  # torch adds it to the norm before dividing


def clip_gradients(parameters: Sequence[torch.nn.Parameter], limit: float) -> torch.Tensor:
    """
    Scale all gradients down if their global norm is above `limit`; returns the norm before.

    The result equals the result of torch's clip_grad_norm_ bit for bit, without its multiplication by 1 below the limit.
    """
    tools: Any = torch.nn.utils
    if not hasattr(tools, "get_total_norm"):  # torch < 2.6
        clipped: torch.Tensor = tools.clip_grad_norm_(parameters, limit)
        return clipped
    norm: torch.Tensor = tools.get_total_norm(
        [parameter.grad for parameter in parameters if parameter.grad is not None]
    )
    if not float(norm) + CLIP_MARGIN <= limit:
        tools.clip_grads_with_norm_(parameters, limit, norm)
    return norm


def gradient_norm(parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor:
    """The global norm of the gradients, sharded or not, on the device."""
    tools: Any = torch.nn.utils
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients and is_replicated_and_sharded(gradients[0]):
        return _norm_over_shards(gradients)
    if hasattr(tools, "get_total_norm"):  # torch >= 2.6
        norm: Any = tools.get_total_norm(gradients)
        whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole
    stacked: torch.Tensor = torch.linalg.vector_norm(torch.stack([gradient.float().norm() for gradient in gradients]))
    return stacked


def is_replicated_and_sharded(tensor: torch.Tensor) -> bool:
    """A DTensor of which groups of ranks have copies, each sharded over its group."""
    mesh = getattr(tensor, "device_mesh", None)
    return mesh is not None and mesh.ndim > 1


def _norm_over_shards(gradients: Sequence[Any]) -> torch.Tensor:
    """
    The norm of DTensors from the norms of the shards, added in their order.

    All replicas thus get the same bits, whatever order the library takes to reduce over the ranks of each: replicas that clip by
    different norms would diverge.
    """
    tools, mesh = torch.nn.utils, gradients[0].device_mesh
    mine = tools.get_total_norm([gradient.to_local() for gradient in gradients])
    norms = torch.empty(mesh.size(-1), dtype=mine.dtype, device=mine.device)
    torch.distributed.all_gather(list(norms.unbind()), mine, group=mesh.get_group(-1))
    whole: torch.Tensor = torch.linalg.vector_norm(norms)
    return whole


def clip_sharded_gradients(parameters: Iterable[torch.nn.Parameter], limit: float) -> torch.Tensor:
    """Clip DTensors; returns the norm over the shards of all ranks."""
    parameters, tools = list(parameters), torch.nn.utils
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients and is_replicated_and_sharded(gradients[0]):
        norm_of_all = _norm_over_shards(gradients)
        tools.clip_grads_with_norm_(parameters, limit, norm_of_all)
        return norm_of_all
    norm: Any = tools.clip_grad_norm_(parameters, limit)
    whole: torch.Tensor = norm.full_tensor()
    return whole
