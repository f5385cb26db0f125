"""Training state as nested dicts and lists of tensors and plain values."""

from __future__ import annotations

from typing import Callable

import torch

from trainer.values import Tree

LARGE_BYTES = 4096


def is_large(tensor: torch.Tensor) -> bool:
    """A state is broadcast without the values of this tensor, which follow one by one."""
    return tensor.numel() * tensor.element_size() > LARGE_BYTES


def map_tensors(tree: Tree, change: Callable[[torch.Tensor], torch.Tensor]) -> Tree:
    """Return the same nesting with `change` applied to every tensor."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(value, change) for key, value in tree.items()}
    return [map_tensors(value, change) for value in tree] if isinstance(tree, list) else tree


def local_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, or the tensor itself."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
