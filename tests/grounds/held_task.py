"""A task that waits while a test wants to act in between: task=tests.grounds.held_task:Held."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.config.config import ModelConfig, TrainConfig
from trainer.tasks.gpt import Gpt

HOLD = "hold"
"""While a file of this name is in `out`, no step after the first checkpoint is made."""


class Held(Gpt):
    """The GPT, number for number, in the size of the tests: settings of model.* are for the GPT by its own name alone."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(replace(config, model=ModelConfig(layers=1, width=32, heads=2, context=32)))

    def loss(self, model: Any, batch: Any) -> Any:  # noqa: ANN401 -- as in Task
        out = Path(self.config.out or "out")
        while (out / HOLD).exists() and any(out.glob("step_*/manifest.json")):
            time.sleep(0.05)
        return super().loss(model, batch)


def hold(out: Path) -> Path:
    """Make `out` with the file in it; the training goes on when that is removed."""
    out.mkdir(mode=0o700)
    (out / HOLD).touch()
    return out / HOLD
