"""Parallel strategies: one class each, and the function that builds the configured one."""

from __future__ import annotations

from pathlib import Path

from trainer.config.config import ZERO_STAGES, TrainConfig
from trainer.parallel.base import Strategy
from trainer.parallel.ddp import Ddp
from trainer.parallel.deepspeed.zero import Zero
from trainer.parallel.fsdp import Fsdp2
from trainer.parallel.requirements import unmet_requirement
from trainer.runtime.group import Group
from trainer.tasks.base import Task


def build_strategy(group: Group, config: TrainConfig, task: Task, out: Path) -> Strategy:
    """
    Build the model of `task` and its optimizer under config.strategy.
    Raises UserError: the same on all ranks; the device, torch or a package of some rank does not support the settings.
    """
    group.raise_if_any(unmet_requirement(group, config))
    if config.strategy in ZERO_STAGES:
        return Zero(group, config, task, out)
    return Fsdp2(group, config, task) if config.strategy == "fsdp2" else Ddp(group, config, task)
