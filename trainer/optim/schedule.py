"""The learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Tuple

from trainer.config.config import OptimConfig, TrainConfig


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak`, then by settings.schedule to settings.lr_floor * peak at step `steps`, and the same after it."""

    settings: OptimConfig
    peak: float
    steps: int

    @classmethod
    def plan(cls, config: TrainConfig, step: int, planned_steps: int | None) -> Tuple[Schedule, str]:
        """
        Return the schedule after `step`, and a warning or "".

        A resumed training keeps the number of steps that was planned, if a plan for the new number would change the rate at once.
        """
        wanted = cls(config.optim, config.lr, config.optim.schedule_steps or config.steps)
        if planned_steps is None or config.optim.schedule_steps or step == 0:
            return wanted, ""
        kept = replace(wanted, steps=planned_steps)
        before, after = kept.rate(step), wanted.rate(step)
        if math.isclose(before, after, rel_tol=1e-9):
            return wanted, ""
        return kept, (
            f"WARNING: the learning rate keeps its plan of {planned_steps} steps: one of {wanted.steps} steps would change it at "
            f"step {step} from {before:.3e} to {after:.3e}; optim.schedule_steps={wanted.steps} does that"
        )

    def warning(self) -> str:
        """Return a warning if the warm-up takes all steps, or ""."""
        warmup_steps = self.settings.warmup_steps
        if warmup_steps == 0 or warmup_steps < self.steps:
            return ""
        return (
            f"WARNING: the learning rate only warms up: optim.warmup_steps={warmup_steps} of {self.steps} steps; it reaches "
            f"{self.rate(self.steps):.3e} of lr={self.peak:g}: take fewer, such as optim.warmup_steps={self.steps // 10}"
        )

    def rate(self, step: int) -> float:
        """The rate of a step, from 1 on."""
        warmup_steps = self.settings.warmup_steps
        if step <= warmup_steps:
            return self.peak * step / warmup_steps
        share = min(1.0, (step - warmup_steps) / max(1, self.steps - warmup_steps))
        floor = self.settings.lr_floor
        return self.peak * (floor + (1 - floor) * self._height(step, share))

    def _height(self, step: int, share: float) -> float:
        """From 1 down to 0; `share` of the steps after the warm-up are done."""
        kind = self.settings.schedule
        if kind == "constant":
            return 1.0
        if kind == "linear":
            return 1 - share
        if kind == "poly":
            return float((1 - share) ** self.settings.poly_power)
        if kind == "wsd":
            decay_steps = self.settings.decay_steps or max(1, self.steps // 10)
            return min(1.0, max(0.0, (self.steps - step) / decay_steps))
        return 0.5 * (1 + math.cos(math.pi * share))
