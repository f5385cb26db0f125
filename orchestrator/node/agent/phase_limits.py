"""
How long the ranks of a node may make no progress, by the steps and phases that they have reported so far. Pure.

A step that lasts three times as long as the longest of the last steps is unusual. Programs start, save and evaluate for minutes.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Tuple

    Reports = Mapping[int, Tuple[int, str]]

STEP, DONE = "step", "done"
SHORTEST_S = 5.0  # within steps
OTHERWISE_S = 120.0  # in another phase, and until the duration of a step is known
TIMES = 3.0
LAST_STEPS = 20
KNOWN_STEPS = 2  # the first step compiles and loads


class PhaseLimits:
    """Measures steps and phases of a node's ranks, and limits the time without progress."""

    def __init__(self, now_s: float) -> None:
        self._reports: Reports = {}
        self._moved_s = now_s
        self._step: Optional[Tuple[int, float]] = None  # the newest step and its time
        self._step_waited_s = 0.0  # without a CPU, since then
        self._steps_s: List[float] = []  # the last durations of a step
        self._longest_s: Dict[str, float] = {}  # of each other phase
        self._longest_gap_s = 0.0  # that was taken for a hang, and ended

    def add(self, reports: Reports, now_s: float, waited_s: float = 0.0) -> bool:
        """
        Add the step and the phase of each rank; return whether they have changed.
        `waited_s`: the part of the time without progress in which they waited for a CPU: it is no part of a step or phase.
        """
        if reports == self._reports:
            return False
        lasted_s = max(0.0, now_s - self._moved_s - waited_s)
        self._step_waited_s += waited_s
        phases = {phase for _, phase in self._reports.values()} - {STEP}
        for phase in phases:
            self._longest_s[phase] = max(lasted_s, self._longest_s.get(phase, 0.0))
        self._measure_step(max((step for step, _ in reports.values()), default=0), now_s, is_plain=not phases)
        self._reports = reports
        self._moved_s = now_s
        return True

    def restart(self, now_s: float, waited_s: float = 0.0) -> None:
        """The ranks make progress without reporting it; `waited_s` as in `add`."""
        self._longest_gap_s = max(self._longest_gap_s, now_s - self._moved_s - waited_s)
        self._step_waited_s += waited_s
        self._moved_s = now_s

    def quiet_s(self, now_s: float) -> float:
        return now_s - self._moved_s

    def limit_s(self) -> float:
        """The seconds without progress from which on it is a suspected hang: the longest limit of the ranks."""
        if not self._reports:
            return math.inf  # a program that reports no progress
        return max(self._limit_of(phase) for _, phase in self._reports.values())

    def step_s(self) -> float:
        """The longest of the last steps; 0 until enough are known."""
        return max(self._steps_s) if len(self._steps_s) >= KNOWN_STEPS else 0.0

    def _limit_of(self, phase: str) -> float:
        if phase == DONE:
            return math.inf
        if phase == STEP and self.step_s():
            return max(SHORTEST_S, TIMES * self.step_s(), TIMES * self._longest_gap_s)
        return max(OTHERWISE_S, TIMES * self._longest_s.get(phase, 0.0))

    def _measure_step(self, step: int, now_s: float, *, is_plain: bool) -> None:
        """Add the duration of the steps since the last report, unless another phase was between them."""
        if self._step is not None and step == self._step[0]:
            return
        if self._step is not None and step > self._step[0] and is_plain and self._reports:
            lasted_s = max(0.0, now_s - self._step[1] - self._step_waited_s)
            if lasted_s > self.limit_s():  # an evaluation without a phase, or a program that seldom reports
                self._longest_gap_s = max(self._longest_gap_s, lasted_s)
            else:
                self._steps_s = [*self._steps_s, lasted_s / (step - self._step[0])][-LAST_STEPS:]
        self._step, self._step_waited_s = (step, now_s), 0.0
