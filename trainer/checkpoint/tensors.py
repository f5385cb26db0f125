"""State in memory: read from a file, and copied onto the CPU."""

from __future__ import annotations

import inspect
from pickle import UnpicklingError
from typing import Any, BinaryIO

import torch

from trainer.errors import UserError


def load_state(file: BinaryIO, name: str) -> Any:  # noqa: ANN401 -- what was saved
    """Tensors onto the CPU. torch 1.10 has no weights_only; what it reads was hashed when this trainer wrote it."""
    safely = {"weights_only": True} if "weights_only" in inspect.signature(torch.load).parameters else {}
    try:
        return torch.load(file, map_location="cpu", **safely)
    except (UnpicklingError, RuntimeError) as exc:
        raise UserError(f"{name}: state.pt: cannot be loaded: {str(exc).splitlines()[0]}") from exc


def on_cpu(tree: Any) -> Any:  # noqa: ANN401 -- nested state of any shape
    """What is on the CPU already is lent, not copied."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu")
    if isinstance(tree, dict):
        return {key: on_cpu(value) for key, value in tree.items()}
    return [on_cpu(value) for value in tree] if isinstance(tree, list) else tree


def copied(tree: Any, into: Any) -> Any:  # noqa: ANN401 -- as above
    """
    A copy on the CPU, in the tensors of `into` where they fit: a copy of before, or None.

    Memory that is there already takes a fraction of the time that fresh memory does.
    """
    if isinstance(tree, torch.Tensor):
        fits = isinstance(into, torch.Tensor) and (into.shape, into.dtype) == (tree.shape, tree.dtype)
        return into.copy_(tree.detach()) if fits else tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        before = into if isinstance(into, dict) else {}
        return {key: copied(value, before.get(key)) for key, value in tree.items()}
    if isinstance(tree, list):
        ones = into if isinstance(into, list) and len(into) == len(tree) else [None] * len(tree)
        return [copied(value, one) for value, one in zip(tree, ones)]
    return tree
