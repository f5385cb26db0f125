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


def on_cpu(tree: Any, *, copied: bool) -> Any:  # noqa: ANN401 -- nested state of any shape
    """`copied`: also what is on the CPU already."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=copied)
    if isinstance(tree, dict):
        return {key: on_cpu(value, copied=copied) for key, value in tree.items()}
    return [on_cpu(value, copied=copied) for value in tree] if isinstance(tree, list) else tree
