"""Tasks as users write them, for ranks that a test starts: task=tests.grounds.tasks:Points."""

from __future__ import annotations

import importlib
import math
import os
import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer.config.config import ModelConfig, TrainConfig
from trainer.console import log_line
from trainer.tasks import Task
from trainer.tasks.gpt import Gpt

COUNT = 64

Sample = tuple[torch.Tensor, torch.Tensor]


class Points(Task):
    """
    A small net that fits points on a line.

    Args:
        config: as for every task.
        broken: the sample of this number is NaN.
        draws: the loss depends on Python's and numpy's generators.
        part: batches whose first point has a negative sum do not use one half of the net.
        steep: the gradient is NaN, though the loss is a number.
    """

    def __init__(
        self, config: TrainConfig, *, broken: int = -1, draws: bool = False, part: bool = False, steep: bool = False
    ) -> None:
        super().__init__(config)
        self.broken, self.draws, self.part, self.steep = broken, draws, part, steep

    def build_model(self) -> nn.Module:
        return Halves()

    def build_data(self, split: str) -> list[Sample] | None:
        points = torch.linspace(-1, 1, 4 * COUNT).view(COUNT, 4)
        if self.broken >= 0:
            points[self.broken] = float("nan")
        return [(point, point[:1] * 3) for point in points] if split == "train" else None

    def loss(self, model: Any, batch: Sample) -> torch.Tensor:
        points, targets = batch
        both = not (self.part and float(points[0].sum()) < 0)
        prediction = model(points, both=both).float()
        loss: torch.Tensor = (prediction - targets).pow(2).mean()
        if self.steep:
            loss = loss + (prediction * 0).abs().sqrt().sum()
        return loss * (1 + random.random() + np.random.rand()) if self.draws else loss  # as users do


class Masked(Points):
    """Fits the points above a border alone, so the micro batches and ranks have different numbers of terms, and some none."""

    VALIDATION = 5

    def build_data(self, split: str) -> list[Sample] | None:
        samples = super().build_data("train")
        return samples if split == "train" or samples is None else samples[COUNT // 2 - 2 :][: self.VALIDATION]

    def count_terms(self, batch: Sample) -> torch.Tensor:
        return (batch[0][:, 0] > 0).sum()

    def loss(self, model: Any, batch: Sample) -> torch.Tensor:
        points, targets = batch
        chosen = points[:, :1] > 0
        squares = (model(points, both=True).float() - targets).pow(2)
        total: torch.Tensor = (squares * chosen).sum()
        return total

    def evaluate(self, model: Any, batch: Sample) -> dict[str, Any]:
        chosen = torch.stack([batch[0][:, 0] > 0, batch[0][:, 0] <= 0])
        return {**super().evaluate(model, batch), "parts": (chosen.sum(1), torch.tensor([len(batch[0]), 0]))}


class Fp16OnCpu(Points):
    """Points with DeepSpeed's check for fp16 on CPUs overridden: it refuses what torch can compute."""

    def __init__(self, config: TrainConfig, *, steep: bool = False) -> None:
        super().__init__(config, steep=steep)
        if config.strategy.startswith("zero"):
            cpu: Any = importlib.import_module("deepspeed.accelerator.cpu_accelerator").CPU_Accelerator
            cpu.is_fp16_supported = lambda _: True


class Miscomputing(Points):
    """
    A device that miscomputes once, on one rank: the norm of the gradient that all ranks share is wrong there.

    Args:
        config: as for every task.
        at: the number of the wrong norm, from 1; DDP computes one per step.
        rank: the rank of that device.
        factor: between the right norm and the wrong one.
    """

    def __init__(self, config: TrainConfig, *, at: int, rank: int, factor: float = math.nan) -> None:
        super().__init__(config)
        self.at, self.factor, self.count = at, factor, 0
        tools: Any = torch.nn.utils
        self.norm_of = tools.get_total_norm
        if os.environ["RANK"] == str(rank):
            tools.get_total_norm = self._wrong_norm

    def _wrong_norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        self.count += 1
        norm: torch.Tensor = self.norm_of(gradients)
        return norm * self.factor if self.count == self.at else norm


class Flipped(Points):
    """
    A replica in which one bit of one weight flips, on one rank.

    Args:
        config: as for every task.
        after: the step after which it flips.
        rank: the rank of that replica.
    """

    def __init__(self, config: TrainConfig, *, after: int, rank: int) -> None:
        super().__init__(config)
        self.left = after + 2 if os.environ["RANK"] == str(rank) else 0  # the first loss is that of the warm-up

    def loss(self, model: Any, batch: Sample) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            weight = next(model.parameters()).data.view(-1)
            weight[:1].view(torch.int32).bitwise_xor_(1)
        return super().loss(model, batch)


class Counted(Points):
    """Points with two blocks; each loss prints the number of graphs that torch.compile has made so far."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        assert isinstance(model, Halves)
        return [model.first, model.second]

    def loss(self, model: Any, batch: Sample) -> torch.Tensor:
        counters = importlib.import_module("torch._dynamo.utils").counters
        log_line(f"graphs={counters['stats']['unique_graphs']}")
        return super().loss(model, batch)


class CountedGpt(Gpt):
    """A GPT of three blocks; each loss prints how many graphs torch.compile has traced, and compiled after it may have cut them."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(replace(config, model=ModelConfig(layers=3, width=160, heads=2, context=16)))

    def loss(self, model: Any, batch: torch.Tensor) -> torch.Tensor:
        counters = importlib.import_module("torch._dynamo.utils").counters
        log_line(f"graphs={counters['stats']['unique_graphs']} compiled={counters['aot_autograd']['total']}")
        return super().loss(model, batch)


class Halves(nn.Module):
    """Two small nets; returns their sum, or the first one's output alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)) for _ in range(2))

    def forward(self, points: torch.Tensor, *, both: bool) -> torch.Tensor:
        prediction: torch.Tensor = self.first(points) + self.second(points) if both else self.first(points)
        return prediction
