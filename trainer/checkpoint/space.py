"""How many checkpoints are to be written, and how many of them at a time a disk has to hold. No torch here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Sequence

from trainer.checkpoint.files import milestones
from trainer.config.config import TrainConfig


def room_needed(step: int, config: TrainConfig, present: Sequence[Path]) -> int:
    """How many more checkpoints than those `present`, newest first, have to fit on the disk after `step`."""
    passing = len(present) - len(milestones(present, config.keep_every))
    # One more than is kept: the oldest goes after the newest is verified.
    room = max(1, config.save_total_limit + config.keep_best + 1 - passing)
    return min(saves_after(step, config), room + _multiples_after(step, config.steps, config.keep_every))


def saves_after(step: int, config: TrainConfig) -> int:
    """How many checkpoints are still to be written; with save_minutes nobody knows, so as many as there are steps."""
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
