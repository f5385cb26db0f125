"""Activation checkpointing: what a block computed is dropped, and computed again for its gradient."""

from __future__ import annotations

import functools
from typing import Callable

import torch
import torch.utils.checkpoint

from trainer.config import TrainConfig
from trainer.strategies.demands import can_recompute_without_reentry


def recompute(config: TrainConfig) -> Callable[..., torch.Tensor] | None:
    """Calls a block with its input so that only the input is kept; None where it was not asked for."""
    if not config.activation_checkpointing:
        return None
    if not can_recompute_without_reentry():
        return torch.utils.checkpoint.checkpoint
    # ZeRO-3 has freed the weights by then, and the other way compares their shapes.
    return functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=config.strategy == "zero3")
