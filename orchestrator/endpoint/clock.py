"""Conversion of a node's times to this machine's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.node.protocol.connection import ReplyHeader

READ_S = 0.001  # the error of reading a clock


@dataclass(frozen=True, slots=True)
class ClockBounds:
    """The least and the most seconds of this machine's clock minus a node's clock since boot."""

    least: float
    most: float

    @classmethod
    def of(cls, reply: ReplyHeader, *, sent_s: float, arrived_s: float) -> ClockBounds:
        """From a reply, and the times of the request and of the arrival by this machine's clock."""
        return cls(sent_s + reply["held_s"] - reply["monotonic_s"], arrived_s - reply["monotonic_s"])

    def within(self, earlier: ClockBounds) -> ClockBounds:
        """The part within the bounds of an earlier reply; all of it if there is none, as one of the clocks was set in between."""
        least, most = max(self.least, earlier.least), min(self.most, earlier.most)
        return ClockBounds(least, most) if least <= most else self

    def correction_s(self, ahead_s: float | None) -> float:
        """
        The seconds to add to times of a clock of the node; `ahead_s` is that clock minus the one since boot, None if unknown.

        A clock within the bounds counts as right: every reader of a log then shows the same times. Otherwise shift it to the
        nearest bound; shifts below READ_S are measurement noise.
        """
        if ahead_s is None or self.most < self.least:  # this machine's clock was set between request and reply
            return 0.0
        shift_s = min(max(ahead_s, self.least), self.most) - ahead_s
        return shift_s if abs(shift_s) > READ_S else 0.0

    def ahead_s(self, ahead_s: float) -> tuple[float, float]:
        """The least and the most seconds by which such a clock of the node is ahead of this machine's."""
        return ahead_s - self.most, ahead_s - self.least
