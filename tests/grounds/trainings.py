"""Trainings in the process of a test."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.grounds.ports import free_ports
from trainer.config.config import TrainConfig
from trainer.metrics.jsonl import Summary
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.tasks.gpt import GPT
from trainer.train import Trainer

TINY = ("model.layers=1", "model.width=8", "model.heads=1", "model.context=8", "micro_batch=1", "device=cpu", "report=")
# A real PreemptionSignal would handle the signals of this process.
NO_PREEMPTION: Any = SimpleNamespace(is_received=False)


class Breaking:
    """Patches GPT.forward: the inputs with the numbers in `broken` (from 1) give nan; `inputs` has the tokens of each, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *broken: int) -> None:
        self.inputs: list[str] = []
        whole = GPT.forward

        def forward(model: GPT, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            text = str(tokens.tolist())
            if text not in self.inputs:
                self.inputs.append(text)
            return whole(model, tokens, target) * (math.nan if self.inputs.index(text) + 1 in broken else 1.0)

        monkeypatch.setattr(GPT, "forward", forward)


def world_of_one() -> dict[str, str]:
    """The launcher's variables for a single rank, which then forms a process group."""
    (port,) = free_ports(1)
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@contextlib.contextmanager
def process_group(*, needed: bool) -> Iterator[Group]:
    """The only rank, in a process group if that is needed, as FSDP2 does."""
    group = initialise("cpu", 60.0, world_of_one() if needed else {})
    try:
        yield group
    finally:
        if needed:
            torch.distributed.destroy_process_group()


def train_alone(config: TrainConfig) -> Summary | None:
    """Train in this process, as the only rank."""
    with process_group(needed=False) as group:
        return train_in(group, config)


def train_in(group: Group, config: TrainConfig) -> Summary | None:
    """Train in this process, as a rank of the group."""
    trainer = Trainer(config, group, Progress(group.rank, config.steps), NO_PREEMPTION)
    try:
        return trainer.run()
    finally:
        trainer.metrics.close(1)
