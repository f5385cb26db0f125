"""Waiting on a condition with a deadline: the only way a test lets time pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

import pytest

T = TypeVar("T")

_PAUSE_S = 0.02


def until(
    condition: Callable[[], T | Literal[False] | None], *, deadline_s: float = 10.0, what: str | Callable[[], str]
) -> T:
    """
    Return the first truthy value of `condition`; fail with `what` was awaited and the last value otherwise.

    `what` may be a function, asked on failure: for evidence that is only there by then, such as a log.
    """
    pause = threading.Event()
    end = time.monotonic() + deadline_s
    while True:
        start = time.monotonic()
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            awaited = what if isinstance(what, str) else what()
            pytest.fail(f"waited {deadline_s:g} s for {awaited}; last seen: {value!r}")
        # what takes long to ask is not asked all the time: others need the processor to make it true
        pause.wait(max(_PAUSE_S, min(1.0, 10 * (time.monotonic() - start))))
