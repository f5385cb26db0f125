"""Training state as nested dicts and lists of tensors and plain values."""

from __future__ import annotations

from typing import Callable

import torch

from trainer.values import Tree

LARGE_BYTES = 4096


def is_large(tensor: torch.Tensor) -> bool:
    """Return True if a checkpoint is broadcast without the values of this tensor, which follow one by one."""
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


def on_cpu(tree: Tree) -> Tree:
    """Return the state on the CPU; tensors that are already there are not copied."""
    return map_tensors(tree, lambda tensor: tensor.detach().to("cpu"))


def copy_to_cpu(tree: Tree, staging: Tree) -> Tree:
    """
    Return a copy on the CPU, in the tensors of `staging`, an earlier copy or None, if shape and type match.

    Reused memory takes a fraction of the time of newly allocated memory.
    """
    if isinstance(tree, torch.Tensor):
        matches = isinstance(staging, torch.Tensor) and (staging.shape, staging.dtype) == (tree.shape, tree.dtype)
        return staging.copy_(tree.detach()) if matches else tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        before = staging if isinstance(staging, dict) else {}
        return {key: copy_to_cpu(value, before.get(key)) for key, value in tree.items()}
    if isinstance(tree, list):
        targets = staging if isinstance(staging, list) and len(staging) == len(tree) else [None] * len(tree)
        return [copy_to_cpu(value, target) for value, target in zip(tree, targets)]
    return tree
