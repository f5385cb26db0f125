"""The GPT on text or tokens, the default task: pre-norm blocks, causal attention, learned positions. No dropout, no buffers."""

from __future__ import annotations

import math
from typing import Mapping, Sequence

import torch
from torch import nn

from trainer.config.config import ModelConfig, TrainConfig
from trainer.data.language import BYTES
from trainer.data.mixture import Mixture, open_paths
from trainer.data.windows import Windows
from trainer.errors import UserError
from trainer.metrics.mfu import flops_per_token
from trainer.runtime.seeds import derive_seed
from trainer.tasks.attention import AttentionShape, causal_attention
from trainer.tasks.base import Task
from trainer.tasks.codecs import tokenizer_codec
from trainer.tasks.continuation import Codec, byte_codec
from trainer.tasks.cross_entropy import Head
from trainer.values import Model

RESIDUAL = ("gather.weight", "feed.2.weight")


class Block(nn.Module):
    """Attention, then a feed-forward of four times the width, each normalised before and added after."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm_attention = nn.LayerNorm(config.width)
        self.mix = nn.Linear(config.width, 3 * config.width)
        self.gather = nn.Linear(config.width, config.width)
        self.norm_feed = nn.LayerNorm(config.width)
        self.feed = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, width] -> the same shape."""
        batch, length, width = x.shape
        mixed = self.mix(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4).unbind(0)
        attended = causal_attention(query, key, value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.gather(attended)
        fed: torch.Tensor = x + self.feed(self.norm_feed(x))
        return fed


class GPT(nn.Module):
    """Tokens in, next-token loss out. Weights have torch's defaults until Gpt.initialise fills them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)
        self.head = Head(config.width, config.vocabulary)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor | None, at: int = 0) -> torch.Tensor:
        """Mean cross entropy in nats over all positions; scalar, fp32. Both int64 [batch, length]. Without targets, the logits of token `at`."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        if target is None:
            logits: torch.Tensor = self.head(self.norm(x[:, at]))
            return logits
        loss: torch.Tensor = self.head(self.norm(x), target)
        return loss / target.numel()


class Gpt(Task):
    """Shaped by model.*, reads data.*; a batch is int64 [batch, context + 1]."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.tokens_per_sample = config.model.context

    def build_model(self) -> GPT:
        return GPT(self.config.model)

    def build_data(self, split: str) -> Windows | Mixture | None:
        data, model = self.config.data, self.config.model
        if split == "validation" and not data.validation:
            return None
        key = "data.paths" if split == "train" else "data.validation"
        return open_paths(
            data,
            split,
            lambda paths: Windows(paths, data.format, key=key, context=model.context, vocabulary=model.vocabulary),
        )

    def loss(self, model: Model, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch[:, :-1], batch[:, 1:])
        return loss

    def codec(self) -> Codec:
        vocabulary = self.config.model.vocabulary
        if self.config.data.tokenizer is None and vocabulary != BYTES:
            raise UserError(f"sample_prompts: model.vocabulary={vocabulary} is not that of bytes: name data.tokenizer")
        return tokenizer_codec(self.config, None, vocabulary) if self.config.data.tokenizer else byte_codec()

    def next_logits(self, model: Model, tokens: torch.Tensor, at: int) -> torch.Tensor:
        logits: torch.Tensor = model(tokens, None, at)[0]
        return logits

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
