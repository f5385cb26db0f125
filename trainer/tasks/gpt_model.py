"""The GPT: pre-norm blocks, causal attention, learned positions. No dropout, no buffers."""

from __future__ import annotations

import torch
from torch import nn

from trainer.config.config import ModelConfig
from trainer.tasks.attention import causal_attention
from trainer.tasks.cross_entropy import Head


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
    """Tokens in, next-token loss out. Weights have torch's defaults until Gpt.initialise (trainer/tasks/gpt.py) fills them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)
        self.head = Head(config.width, config.vocabulary)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy in nats over all positions; scalar, fp32. Both int64 [batch, length]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        loss: torch.Tensor = self.head(self.norm(x), target)
        return loss / target.numel()
