"""Training state read from a file, and as an outline that is sent before the values of large tensors."""

from __future__ import annotations

import inspect
import io
from pathlib import Path
from pickle import UnpicklingError
from typing import BinaryIO

import torch

from trainer.errors import UserError
from trainer.tensors import is_large, map_tensors
from trainer.values import Tree


def load_state(file: Path | BinaryIO, name: str, *, mapped: bool = False) -> Tree:
    """
    Load the saved state to the CPU.

    Args:
        file: its hash was verified before: torch 1.10 has no weights_only.
        name: of the checkpoint, for messages.
        mapped: map the tensors from the file, if torch can (>= 2.1).
    """
    known = inspect.signature(torch.load).parameters
    more = {"weights_only": True} if "weights_only" in known else {}
    if mapped and "mmap" in known:
        more["mmap"] = True
    try:
        return torch.load(str(file) if isinstance(file, Path) else file, map_location="cpu", **more)
    except (UnpicklingError, RuntimeError, EOFError) as exc:
        raise UserError(f"{name}: state.pt: cannot be loaded: {str(exc).splitlines()[0]}") from exc


def outline(tree: Tree) -> bytes:
    """Serialise the state without the values of large tensors."""
    written = io.BytesIO()
    torch.save(map_tensors(tree, lambda tensor: _without_values(tensor) if is_large(tensor) else tensor), written)
    return written.getvalue()


def allocate(text: bytes, name: str) -> Tree:
    """Return the state with this outline; its large tensors are allocated and uninitialised."""
    tree = load_state(io.BytesIO(text), name)
    return map_tensors(
        tree, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype) if is_large(tensor) else tensor
    )


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape and type whose storage has a single element."""
    return tensor.new_empty(1).expand(tensor.shape)
