"""Copies of the training state on the CPU, from which a checkpoint is written."""

from __future__ import annotations

import torch

from trainer.tensors import map_tensors
from trainer.values import Tree


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
