"""Times of another machine by the clock of this one, whatever that machine's own clock shows."""

from __future__ import annotations

from dataclasses import dataclass

READ_S = 0.001  # a process may lose the processor between two looks


@dataclass(frozen=True, slots=True)
class Window:
    """When a node wrote its reply, by this machine's clock: not before it could have, nor after it was heard."""

    earliest: float
    latest: float

    def shift_s(self, now_there: float | None) -> float:
        """
        What to add to times of a clock that showed `now_there` in the reply; 0 where nobody knows.

        A clock that may be right is left alone, for what a reply takes says nothing of it; any other is moved by the
        least that makes it possible, if that is more than reading a clock is off by: all who read a log see the same times.
        """
        if now_there is None or self.latest < self.earliest:  # the clock of this machine was set meanwhile
            return 0.0
        shift_s = min(max(now_there, self.earliest), self.latest) - now_there
        return shift_s if abs(shift_s) > READ_S else 0.0
