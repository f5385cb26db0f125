"""Activation checkpointing: the activations of a block are freed and recomputed in the backward pass."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Sequence

import torch
import torch.utils.checkpoint

from trainer.config.config import TrainConfig


def recompute(config: TrainConfig, blocks: Sequence[torch.nn.Module]) -> None:
    """Keep only the inputs of the blocks, if configured."""
    if not config.activation_checkpointing:
        return
    for block in blocks:
        # ZeRO-3 has freed the weights by the backward pass, and the non-reentrant variant compares their shapes.
        reentrant = config.strategy == "zero3" or not can_recompute_without_reentry()
        block.forward = (_reentrant if reentrant else _non_reentrant)(block.forward)


def _non_reentrant(forward: Callable[..., Any]) -> Callable[..., Any]:
    checkpoint: Any = torch.utils.checkpoint.checkpoint

    # A function of this file, not a partial(): torch.compile skips torch's own frames, so it would compile nothing.
    def recomputed(*inputs: Any, **named: Any) -> Any:  # noqa: ANN401 -- a module's
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return recomputed


def _reentrant(forward: Callable[..., Any]) -> Callable[..., Any]:
    option = {"use_reentrant": True} if can_recompute_without_reentry() else {}
    checkpoint: Any = torch.utils.checkpoint.checkpoint

    def recomputed(*inputs: Any) -> Any:  # noqa: ANN401 -- a module's
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
            return checkpoint(forward, *inputs, **option)
        # No input needs a gradient, as in the first block of an image model: the reentrant variant would return none.
        return forward(*inputs)

    return recomputed


def can_recompute_without_reentry() -> bool:
    """Return True from torch 1.11 on."""
    return "use_reentrant" in inspect.signature(torch.utils.checkpoint.checkpoint).parameters
