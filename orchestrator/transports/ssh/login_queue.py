"""The queue of one transport for a login slot, and the time that it has spent there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class LoginQueue:
    """
    The way to a login slot.

    Args:
        slots: limits the logins in progress, of all transports that share it.
    """

    def __init__(self, slots: AbstractContextManager[object]) -> None:
        self._slots = slots
        self._waits: tuple[float, float | None] = 0.0, None
        """The seconds of earlier waits, and when the present one began; set at once, because other threads read it."""

    @property
    def waited_s(self) -> float:
        earlier_s, begun = self._waits
        return earlier_s if begun is None else earlier_s + time.monotonic() - begun

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for a login slot, and hold it."""
        self._waits = self.waited_s, time.monotonic()
        with self._slots:
            self._waits = self.waited_s, None
            yield
