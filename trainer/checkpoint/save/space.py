"""The number of checkpoints still to be written, and how many of them the disk must hold at once. No torch here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Mapping, Sequence

from trainer.checkpoint.format.files import milestones
from trainer.config.config import TrainConfig


def checkpoint_bytes(sizes: Mapping[str, int], world_size: int, config: TrainConfig) -> int:
    """Estimate: weights, Adam's two moments and averages in fp32, and the random states of all ranks as text."""
    return (16 if config.optim.ema else 12) * sum(sizes.values()) + 32_000 * world_size + 1_000_000


def checkpoints_to_hold(step: int, config: TrainConfig, present: Sequence[Path]) -> int:
    """Number of checkpoints that must fit on the disk after `step`, not counting those `present` (newest first)."""
    removable = len(present) - len(milestones(present, config.keep_every))
    # One more than is kept: the oldest is removed after the newest is verified.
    recent = max(1, config.save_total_limit + config.keep_best + 1 - removable)
    return min(saves_after(step, config), recent + _multiples_after(step, config.steps, config.keep_every))


def saves_after(step: int, config: TrainConfig) -> int:
    """The number of checkpoints still to be written; unknown with save_minutes, so the number of steps left."""
    left = config.steps - step
    if config.save_minutes is not None or left <= 0:
        return max(0, left)
    often, every = config.save_steps, config.keep_every or config.save_steps
    both = often * every // math.gcd(often, every)
    due = sum(_multiples_after(step, config.steps, period) for period in (often, every))
    at_the_end = bool(config.steps % often and config.steps % every)
    return due - _multiples_after(step, config.steps, both) + at_the_end


def _multiples_after(step: int, last: int, every: int | None) -> int:
    return 0 if every is None else last // every - step // every
