"""Tasks that wait between steps until a test releases them: task=tests.grounds.held_task:Held."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.config.config import ModelConfig, TrainConfig
from trainer.tasks import Task
from trainer.tasks.gpt import Gpt

HOLD = "hold"
"""While `out` holds a file of this name, no step runs after the first checkpoint and the number of steps in the file."""


class HeldTask(Task):
    """The hold alone, for a class that derives from it and from a task."""

    def loss(self, model: Any, batch: Any) -> Any:
        while _is_held(Path(self.config.out or Path(os.environ["ORCH_RUN_DIR"], "checkpoints"))):
            time.sleep(0.05)
        return super().loss(model, batch)  # type: ignore[safe-super]


class Held(HeldTask, Gpt):
    """The GPT with the same numbers, in the tests' size: settings of model.* are accepted for `gpt` alone."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(replace(config, model=ModelConfig(layers=1, width=32, heads=2, context=32)))


def _is_held(out: Path) -> bool:
    try:
        steps = int((out / HOLD).read_text())
    except FileNotFoundError:
        return False
    return any(out.glob("step_*/manifest.json")) and (out / "metrics.jsonl").read_bytes().count(b"\n") >= steps


def hold(out: Path, *, steps: int = 0) -> Path:
    """Make `out` with the file in it; training continues when the file is removed."""
    out.mkdir(mode=0o700, parents=True)
    allow(out / HOLD, steps=steps)
    return out / HOLD


def allow(held: Path, *, steps: int) -> None:
    """Let training run until that step; the file is replaced at once, as ranks read it all the time."""
    new = held.with_name(f"{held.name}.new")
    new.write_text(str(steps))
    new.chmod(0o644)
    new.replace(held)
