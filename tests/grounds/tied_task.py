"""A task whose model has shared weights, buffers and a plain tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trainer.runtime.seeds import derive_seed
from trainer.tasks import Samples, Task

WORDS, WIDTH, LENGTH = 13, 8, 6


class Block(nn.Module):
    """Causal attention whose queries are scaled by position."""

    turn: torch.Tensor
    past: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        # cosines of positions that are equal in bf16
        self.register_buffer(
            "turn", 5.0 * torch.arange(1000.0, 1000.0 + LENGTH).cos()[:, None].repeat(1, WIDTH), persistent=False
        )
        self.register_buffer("past", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
        self.scale = torch.tensor(WIDTH**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (self.mix(x) * self.turn.to(x.dtype)) @ x.transpose(-2, -1) * self.scale.to(x.device)
        attended = scores.masked_fill(~self.past, float("-inf")).softmax(-1) @ x
        mixed: torch.Tensor = x + self.out(attended)
        return mixed


class Model(nn.Module):
    """The embedding and the head share a weight, and so do the first and the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(WORDS, WIDTH)
        first, middle, last = Block(), Block(), Block()
        last.out.weight = first.out.weight
        self.blocks = nn.ModuleList([first, middle, last])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


class Sentences:
    """Samples that are a function of their index."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(index % 8))


class Tied(Task):
    """Trains within seconds."""

    def build_model(self) -> Model:
        return Model()

    def build_data(self, split: str) -> Samples | None:
        return Sentences() if split == "train" else None

    def loss(self, model: Any, batch: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1).float(), batch[:, 1:].flatten())

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, Model)
        return list(model.blocks)

    def initialise(self, name: str, weight: torch.Tensor) -> None:
        weight.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(derive_seed(self.config.seed, name)))
