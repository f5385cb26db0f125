"""Linear layers of the blocks in fp8, by torchao: a card multiplies such matrices at twice the rate of bf16."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Sequence

import torch

from trainer.config.config import TrainConfig
from trainer.errors import UserError
from trainer.runtime.accelerators import Accelerator

LEAST_CAPABILITY = (8, 9)
MULTIPLE = 16
"""Cards multiply fp8 matrices whose sizes are multiples of it."""


def unmet_fp8(accelerator: Accelerator, config: TrainConfig) -> str:
    """Why this rank cannot train with fp8=true, with the remedy, or ""."""
    if not config.fp8:
        return ""
    if accelerator.name != "cuda":
        return f"fp8=true: {accelerator.name} has no fp8: leave it out"
    if config.precision != "bf16":
        return f"fp8=true goes with precision=bf16, in which all other layers compute, not {config.precision}"
    capability = accelerator.torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        found = ".".join(map(str, capability))
        return f"fp8=true needs a card of compute capability 8.9 or more, such as Ada and Hopper, here is {found}: leave it out"
    if importlib.util.find_spec("torchao") is None:
        return "fp8=true needs the package torchao, which is not installed for this Python: pip install torchao, or leave it out"
    return ""


def use_fp8(config: TrainConfig, blocks: Sequence[torch.nn.Module], **options: Any) -> None:  # torchao's
    """
    Have the linear layers in the blocks multiply in fp8, each tensor scaled by its largest value; the weights stay as they are.

    Layers whose sizes are no multiples of 16 are left, and so are embeddings and head.

    Args:
        config: for the message.
        blocks: of the model, which may be on `meta`.
        options: of torchao's Float8LinearConfig.

    Raises:
        UserError: the same on all ranks; the blocks have no such layer.
    """
    api: Any = importlib.import_module("torchao.float8")
    converted = []

    def is_suitable(layer: torch.nn.Linear, name: str) -> bool:
        suits = layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0
        converted.extend([name] if suits else [])
        return suits

    for block in blocks:
        settings = api.Float8LinearConfig(**options)
        api.convert_to_float8_training(block, module_filter_fn=is_suitable, config=settings)
    if not converted:
        raise UserError.agreed(
            f"fp8=true: task={config.task} has no linear layers in blocks() whose sizes are multiples of {MULTIPLE}; leave it out"
        )
