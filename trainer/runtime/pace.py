"""The seconds that a step takes, for the progress file. No torch here."""

from __future__ import annotations

from typing import List, Optional, Tuple

KEPT_S = 60.0


class Pace:
    """The mean of the steps of the last one or two minutes, with saves and evaluations; the first step of an attempt does not count."""

    def __init__(self) -> None:
        self._begin: Optional[int] = None
        self._points: List[Tuple[float, int]] = []
        """Two times at least KEPT_S apart, and the steps that were done then; the older one is where the mean begins."""
        self._newest: Tuple[float, int] = (0.0, 0)

    def add(self, now_s: float, step: int) -> None:
        """Add the number of steps that are done now, by a clock that never goes back."""
        if self._begin is None or step < self._newest[1]:  # at first, and after a roll-back
            self._begin, self._points = step, []
        elif step == self._newest[1]:
            return
        elif not self._points or now_s - self._points[-1][0] >= KEPT_S:
            self._points = [*self._points[-1:], (now_s, step)]
        self._newest = now_s, step

    @property
    def step_s(self) -> Optional[float]:
        """The seconds of a step, to four digits; None until they are known."""
        (begin_s, begin), (now_s, step) = self._points[0] if self._points else self._newest, self._newest
        return float(f"{(now_s - begin_s) / (step - begin):.4g}") if step > begin and now_s > begin_s else None
