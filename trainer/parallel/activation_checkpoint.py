"""Activation checkpointing: what a block computed is dropped, and computed again for its gradient."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch.utils.checkpoint

from trainer.config.config import TrainConfig
from trainer.parallel.requirements import can_recompute_without_reentry


def recompute(config: TrainConfig, blocks: Sequence[torch.nn.Module]) -> None:
    """Have only the inputs of the blocks kept, where the settings ask for it."""
    if not config.activation_checkpointing:
        return
    for block in blocks:
        # ZeRO-3 has freed the weights by then, and the way without re-entry compares their shapes.
        again = config.strategy == "zero3" or not can_recompute_without_reentry()
        block.forward = (_by_reentry if again else _without_reentry)(block.forward)


def _without_reentry(forward: Callable[..., Any]) -> Callable[..., Any]:
    checkpoint: Any = torch.utils.checkpoint.checkpoint

    # A function of this file: torch.compile skips frames of torch's own, so it would compile nothing of a partial().
    def recomputed(*inputs: Any, **named: Any) -> Any:  # noqa: ANN401 -- a module's
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return recomputed


def _by_reentry(forward: Callable[..., Any]) -> Callable[..., Any]:
    way = {"use_reentrant": True} if can_recompute_without_reentry() else {}
    checkpoint: Any = torch.utils.checkpoint.checkpoint

    def recomputed(*inputs: Any) -> Any:  # noqa: ANN401 -- a module's
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs):
            return checkpoint(forward, *inputs, **way)
        return forward(
            *inputs
        )  # such as the first block, of an image: without a gradient to pass on, it would get none

    return recomputed
