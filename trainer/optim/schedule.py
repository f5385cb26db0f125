"""The learning rate of each step."""

from __future__ import annotations

import math

FLOOR = 0.1  # share of the peak at the end of the cosine


def learning_rate(step: int, steps: int, peak: float, warmup_steps: int) -> float:
    """Linear warm-up to `peak`, then a cosine down to FLOOR * peak; steps count from 1."""
    if step <= warmup_steps:
        return peak * step / warmup_steps
    share = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * share)))
