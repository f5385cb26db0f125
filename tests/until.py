"""Waiting on a condition with a deadline: the only way in which a test waits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

import pytest

T = TypeVar("T")

_PAUSE_S = 0.02


def until(
    condition: Callable[[], T | Literal[False] | None], *, deadline_s: float = 60.0, awaited: str | Callable[[], str]
) -> T:
    """
    Poll `condition` and return its first truthy value; after the deadline, fail with `awaited` and the last value.

    `awaited` may be a function, which is called on failure: for evidence that exists only by then, such as a log.
    """
    pause = threading.Event()
    end = time.monotonic() + deadline_s
    while True:
        before_s = _cpu_s()
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            text = awaited if isinstance(awaited, str) else awaited()
            pytest.fail(f"waited {deadline_s:g} s for {text}; last seen: {value!r}")
        # an expensive condition is polled less often: the processes that make it true need the processor
        pause.wait(max(_PAUSE_S, min(1.0, 10 * (_cpu_s() - before_s))))


def _cpu_s() -> float:
    """CPU time of this process and its ended children; wall time would grow with the load of the machine."""
    return sum(os.times()[:4])
