"""A whole state, which rank 0 reads: one tensor after another is sent to all ranks, and each keeps its part."""

from __future__ import annotations

import io
import math
from typing import Any, Collection, Dict, Iterator, List, Mapping, Tuple

import torch

from trainer.checkpoint.load.state_pt import load_state
from trainer.parallel.base import Strategy
from trainer.parallel.parts import Part, described, first_names
from trainer.runtime.group import Group
from trainer.state_keys import MODEL, MOMENTS
from trainer.tensors import is_large, map_tensors
from trainer.values import Tree


def load_whole(group: Group, state: Dict[str, Any] | None, strategy: Strategy, name: str) -> None:
    """
    Load a state of any strategy and number of ranks into all ranks. A rank need not hold more of it than its own part.

    Args:
        group: of all ranks.
        state: in the form of Strategy.state() on rank 0, which loses its tensors; None elsewhere.
        strategy: gets it.
        name: of the state, for messages.

    Raises:
        UserError: on all ranks alike; it lacks a tensor of the model.
    """
    text = group.broadcast_bytes(b"" if state is None else outline(state))
    state = allocate(text, name) if state is None else state
    moments: Mapping[str, Mapping[str, Any]] = state["moments"]
    steps, further = described(moments)
    parts: Dict[str, List[Part]] = {}
    for part in strategy.parts_to_load(steps, further):
        parts.setdefault(part.key, []).append(part)
    plain, problem = {}, ""
    for key, value in _taken(state, first_names(strategy.unwrapped_model)):
        if not isinstance(value, torch.Tensor):
            kind, _, owner = key.partition("/")
            plain.update({owner: value} if kind == MODEL else {})  # such as the extra state of a module
            continue
        if is_large(value):
            group.broadcast(value)
        for part in parts.pop(key, ()):
            if tuple(value.shape) == part.shape:
                part.load_from(value)
            else:
                problem = problem or part.missing_in(name)
    for part in (found[0] for found in parts.values()):
        kind, _, key = part.key.partition("/")
        # a parameter that had no moments gets zeros
        if math.prod(part.shape) and (kind not in MOMENTS or key in steps):
            problem = problem or part.missing_in(name)
    group.raise_if_any(problem)
    if plain:
        torch.nn.Module.load_state_dict(strategy.unwrapped_model, plain, strict=False)
    strategy.finish_load(state.get("scaler", {}))


def _taken(state: Mapping[str, Any], aliases: Collection[str]) -> Iterator[Tuple[str, Any]]:
    """Take each weight, but for further names of tied ones, and each moment from the state: a loaded tensor need not stay in memory."""
    model, moments = state["model"], state["moments"]
    for name in [name for name in model if name not in aliases]:
        yield f"{MODEL}/{name}", model.pop(name)
    for name, values in moments.items():
        for kind in [kind for kind in values if kind != "step"]:
            yield f"{kind}/{name}", values.pop(kind)


def outline(tree: Tree) -> bytes:
    """Serialise the state without the values of large tensors: of these, the storage has a single element."""
    written = io.BytesIO()
    torch.save(
        map_tensors(tree, lambda tensor: tensor.new_empty(1).expand(tensor.shape) if is_large(tensor) else tensor),
        written,
    )
    return written.getvalue()


def allocate(text: bytes, name: str) -> Tree:
    """Return the state with this outline; its large tensors are allocated and uninitialised."""
    tree = load_state(io.BytesIO(text), name)
    return map_tensors(
        tree, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype) if is_large(tensor) else tensor
    )
