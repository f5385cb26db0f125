"""The GPT on text or tokens: the default task."""

from __future__ import annotations

import math
from typing import Mapping, Sequence

import torch

from trainer.config.config import TrainConfig
from trainer.data.windows import Windows
from trainer.metrics.mfu import flops_per_token
from trainer.runtime.seeds import derive_seed
from trainer.tasks.attention import AttentionShape
from trainer.tasks.base import Task
from trainer.tasks.gpt_model import GPT
from trainer.values import Model

RESIDUAL = ("gather.weight", "feed.2.weight")


class Gpt(Task):
    """Shaped by model.*, reads data.*; a batch is int64 [batch, context + 1]."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.tokens_per_sample = config.model.context

    def build_model(self) -> GPT:
        return GPT(self.config.model)

    def build_data(self, split: str) -> Windows | None:
        data, model = self.config.data, self.config.model
        if split == "validation" and not data.validation:
            return None
        paths, key = (data.paths, "data.paths") if split == "train" else (data.validation, "data.validation")
        return Windows(paths, data.format, key=key, context=model.context, vocabulary=model.vocabulary)

    def loss(self, model: Model, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch[:, :-1], batch[:, 1:])
        return loss

    def attention(self, batch: torch.Tensor) -> AttentionShape:
        model = self.config.model
        return AttentionShape(model.heads, model.width // model.heads, batch.shape[1] - 1)

    def blocks(self, model: torch.nn.Module) -> Sequence[torch.nn.Module]:
        assert isinstance(model, GPT)
        return list(model.blocks)

    def ends(self, model: torch.nn.Module) -> Sequence[Sequence[torch.nn.Module]]:
        assert isinstance(model, GPT)
        return [[model.token, model.position], [model.norm, model.head]]

    def initialise(self, name: str, weight: torch.Tensor) -> None:
        """GPT-2's: normal(0, 0.02), smaller for projections into the residual stream, zero biases, norms at one."""
        if weight.dim() == 1:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
            return
        std = 0.02 / math.sqrt(2 * self.config.model.layers) if name.endswith(RESIDUAL) else 0.02
        weight.normal_(0.0, std, generator=torch.Generator().manual_seed(derive_seed(self.config.seed, name)))

    def flops_per_sample(self, sizes: Mapping[str, int]) -> int:
        return flops_per_token(sizes.items(), self.config.model) * self.config.model.context
