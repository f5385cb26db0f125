"""Activation checkpointing: the activations of a block are freed and recomputed in the backward pass, all or the cheap ones."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, FrozenSet, Sequence

import torch
import torch.utils.checkpoint

from trainer.config.config import SELECTIVE, TrainConfig
from trainer.values import Foreign

KEPT = (
    *("mm", "addmm", "bmm", "baddbmm"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
)
"""Operations of aten of which `selective` keeps the results: those that take most of the time."""


def recompute(config: TrainConfig, blocks: Sequence[torch.nn.Module]) -> None:
    """Keep only the inputs of the blocks, if configured; or of every n-th one; or also the results of KEPT."""
    setting = config.activation_checkpointing
    if not setting:
        return
    for block in blocks[:: setting if type(setting) is int else 1]:
        if setting == SELECTIVE:
            api: Any = torch.utils.checkpoint
            kept = functools.partial(api.create_selective_checkpoint_contexts, _policy)
            block.forward = _non_reentrant(block.forward, context_fn=kept)
            continue
        # ZeRO-3 has freed the weights by the backward pass, and the non-reentrant variant compares their shapes.
        reentrant = config.strategy == "zero3" or not can_recompute_without_reentry()
        block.forward = (_reentrant if reentrant else _non_reentrant)(block.forward)


def _policy(_: object, operation: Foreign, *inputs: Any, **named: Any) -> Foreign:
    """Keep the result of an operation, or recompute it."""
    policies: Any = torch.utils.checkpoint
    # Attention with dropout: if it were not recomputed, later operations would draw other numbers than before.
    names = [argument.name for argument in operation._schema.arguments]  # noqa: SLF001 -- has no public name
    draws = bool({**dict(zip(names, inputs)), **named}.get("dropout_p"))
    keeps = operation in kept_operations() and not draws
    return policies.CheckpointPolicy.MUST_SAVE if keeps else policies.CheckpointPolicy.PREFER_RECOMPUTE


@functools.lru_cache(maxsize=None)
def kept_operations() -> FrozenSet[Any]:
    found = (getattr(torch.ops.aten, name, None) for name in KEPT)
    return frozenset(operation.default for operation in found if operation is not None)


def _non_reentrant(forward: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    checkpoint: Any = torch.utils.checkpoint.checkpoint

    # A function of this file, not a partial(): torch.compile skips torch's own frames, so it would compile nothing.
    def recomputed(*inputs: Any, **named: Any) -> object:
        return checkpoint(forward, *inputs, use_reentrant=False, **options, **named)

    return recomputed


def _reentrant(forward: Callable[..., Any]) -> Callable[..., Any]:
    option = {"use_reentrant": True} if can_recompute_without_reentry() else {}
    checkpoint: Any = torch.utils.checkpoint.checkpoint

    def recomputed(*inputs: Any, **named: Any) -> object:
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
            # Named inputs, such as masks, get no gradient.
            return checkpoint(functools.partial(forward, **named), *inputs, **option)
        # No input needs a gradient, as in the first block of an image model: the reentrant variant would return none.
        return forward(*inputs, **named)

    return recomputed


def can_recompute_selectively() -> bool:  # torch >= 2.4
    return hasattr(torch.utils.checkpoint, "create_selective_checkpoint_contexts")


def can_recompute_without_reentry() -> bool:  # torch >= 1.11
    return "use_reentrant" in inspect.signature(torch.utils.checkpoint.checkpoint).parameters
