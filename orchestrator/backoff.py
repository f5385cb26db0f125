"""Pauses between retries: doubled up to a limit, and random, so that many nodes do not retry at the same moment."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_S = 0.2


def backoff(last_s: float, first_s: float = FIRST_S) -> Iterator[float]:
    """Yield for ever how long to wait before the next retry: half to one and a half of `first_s`, then of twice that, up to `last_s`."""
    pause_s = first_s
    while True:
        yield pause_s * random.uniform(0.5, 1.5)  # noqa: S311  not for security
        pause_s = min(2 * pause_s, last_s)
