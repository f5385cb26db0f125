"""Training state as nested dicts and lists of tensors and plain values: its large tensors, and copies on the CPU."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch

# `Any` below stands for such nested state.
LARGE_BYTES = 4096


def is_large(tensor: torch.Tensor) -> bool:
    """Return True if a checkpoint is broadcast without the values of this tensor, which follow one by one."""
    return tensor.numel() * tensor.element_size() > LARGE_BYTES


def large_tensors(tree: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401
    """All large tensors, in the same order on every rank."""
    if isinstance(tree, torch.Tensor):
        if is_large(tree):
            yield tree
    elif isinstance(tree, (dict, list)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from large_tensors(value)


def map_tensors(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401
    """Return the same nesting with `change` applied to every tensor."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(value, change) for key, value in tree.items()}
    return [map_tensors(value, change) for value in tree] if isinstance(tree, list) else tree


def on_cpu(tree: Any) -> Any:  # noqa: ANN401
    """Return the state on the CPU; tensors that are already there are not copied."""
    return map_tensors(tree, lambda tensor: tensor.detach().to("cpu"))


def copy_to_cpu(tree: Any, staging: Any) -> Any:  # noqa: ANN401
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
