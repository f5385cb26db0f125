"""A task that waits between steps until a test releases it: task=tests.grounds.held_task:Held."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.config.config import ModelConfig, TrainConfig
from trainer.tasks.gpt import Gpt

HOLD = "hold"
"""While `out` holds a file of this name, no step runs after the first checkpoint."""


class Held(Gpt):
    """The GPT with the same numbers, in the tests' size: settings of model.* are accepted for `gpt` alone."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(replace(config, model=ModelConfig(layers=1, width=32, heads=2, context=32)))

    def loss(self, model: Any, batch: Any) -> Any:  # noqa: ANN401 -- as in Task
        out = Path(self.config.out or "out")
        while (out / HOLD).exists() and any(out.glob("step_*/manifest.json")):
            time.sleep(0.05)
        return super().loss(model, batch)


def hold(out: Path) -> Path:
    """Make `out` with the file in it; training continues when the file is removed."""
    out.mkdir(mode=0o700)
    (out / HOLD).touch()
    return out / HOLD
