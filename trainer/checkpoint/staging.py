"""Training state in memory: read from a file, copied to the CPU, and sent as an outline followed by its large tensors."""

from __future__ import annotations

import inspect
import io
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, Callable, Iterator

import torch

from trainer.errors import UserError

# `Any` below stands for nested state of any shape: dicts and lists with tensors and plain values.
LARGE_BYTES = 4096


def load_state(file: Path | BinaryIO, name: str, *, mapped: bool = False) -> Any:  # noqa: ANN401
    """
    The saved state, on the CPU.

    Args:
        file: torch 1.10 has no weights_only; its hash was verified before.
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


def outline(tree: Any) -> bytes:  # noqa: ANN401
    """Everything but the values of large tensors."""
    written = io.BytesIO()
    torch.save(
        map_tensors(tree, lambda tensor: tensor.new_empty(1).expand(tensor.shape) if _is_large(tensor) else tensor),
        written,
    )
    return written.getvalue()


def allocate(text: bytes, name: str) -> Any:  # noqa: ANN401
    """The state with this outline; its large tensors are allocated and uninitialised."""
    tree = load_state(io.BytesIO(text), name)
    return map_tensors(
        tree, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype) if _is_large(tensor) else tensor
    )


def large_tensors(tree: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401
    """The tensors whose values an outline lacks, in the outline's order."""
    if isinstance(tree, torch.Tensor):
        if _is_large(tree):
            yield tree
    elif isinstance(tree, (dict, list)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from large_tensors(value)


def map_tensors(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401
    """The same with other tensors."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(value, change) for key, value in tree.items()}
    return [map_tensors(value, change) for value in tree] if isinstance(tree, list) else tree


def on_cpu(tree: Any) -> Any:  # noqa: ANN401
    """The same on the CPU; tensors that are already there are not copied."""
    return map_tensors(tree, lambda tensor: tensor.detach().to("cpu"))


def copy_to_cpu(tree: Any, into: Any) -> Any:  # noqa: ANN401
    """
    A copy on the CPU, in the tensors of `into`, an earlier copy or None, if they match.

    Reused memory takes a fraction of the time of newly allocated memory.
    """
    if isinstance(tree, torch.Tensor):
        matches = isinstance(into, torch.Tensor) and (into.shape, into.dtype) == (tree.shape, tree.dtype)
        return into.copy_(tree.detach()) if matches else tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        before = into if isinstance(into, dict) else {}
        return {key: copy_to_cpu(value, before.get(key)) for key, value in tree.items()}
    if isinstance(tree, list):
        ones = into if isinstance(into, list) and len(into) == len(tree) else [None] * len(tree)
        return [copy_to_cpu(value, target) for value, target in zip(tree, ones)]
    return tree


def _is_large(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() > LARGE_BYTES
