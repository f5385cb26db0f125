"""How ranks share one model: a class a strategy, and the one function that picks it."""

from __future__ import annotations

from pathlib import Path

from trainer.config.config import ZERO_STAGES, TrainConfig
from trainer.parallel.base import Strategy
from trainer.parallel.ddp import Ddp
from trainer.parallel.deepspeed.zero import Zero
from trainer.parallel.fsdp import Fsdp2
from trainer.parallel.requirements import unmet
from trainer.runtime.group import Group
from trainer.tasks.base import Task


def choose_strategy(group: Group, config: TrainConfig, task: Task, out: Path) -> Strategy:
    """
    What config.strategy names, around the model of `task`.

    Raises:
        UserError: on all ranks alike; a rank's device or packages lack what the settings need.
    """
    group.agree(unmet(group, config))
    if config.strategy in ZERO_STAGES:
        return Zero(group, config, task, out)
    return Fsdp2(group, config, task) if config.strategy == "fsdp2" else Ddp(group, config, task)
