"""Times of another machine by the clock of this one, whatever that machine's own clock shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """When a node wrote its reply, by this machine's clock: not before it could have, nor after it was heard."""

    earliest: float
    latest: float

    def shift_s(self, now_there: float | None) -> float:
        """
        What to add to times of a clock that showed `now_there` in the reply; 0 where nobody knows.

        A clock that may be right is left alone, for what a reply takes says nothing of it; any other is moved by the
        least that makes it possible.
        """
        if now_there is None or self.latest < self.earliest:  # the clock of this machine was set meanwhile
            return 0.0
        return min(max(now_there, self.earliest), self.latest) - now_there
