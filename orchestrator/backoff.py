"""Pauses between retries: they double up to a limit, with jitter, so that many nodes do not retry at the same moment."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_S = 0.2


def backoff(last_s: float, first_s: float = FIRST_S) -> Iterator[float]:
    """Yield the seconds before each retry, without end: `first_s`, doubled up to `last_s`, each times a random 0.5 to 1.5."""
    pause_s = first_s
    while True:
        yield pause_s * random.uniform(0.5, 1.5)  # noqa: S311  not for security
        pause_s = min(2 * pause_s, last_s)
