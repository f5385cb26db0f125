"""The step, the loss, the speed and the remaining time of a training, as the progress files of the ranks report them. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.node.run.retry import saved_step

DONE = "done"
KEPT_S = 60.0  # of looks, for the speed of a program that does not report it


@dataclass(frozen=True, slots=True)
class Training:
    """
    The progress of a training: rank 0's, or of the rank that is furthest if rank 0 reports no step. None where nothing is reported.

    A NaN in the program's loss stays one.
    """

    step: int
    """The optimizer steps that are done, those of earlier attempts included."""
    steps: int | None = None
    """How many there will be."""
    phase: str | None = None
    loss: float | None = None
    step_s: float | None = None
    """The seconds of a step, with the saves and evaluations between the last steps."""
    per_step: float | None = None
    """The work of one step on all ranks, in `unit`."""
    unit: str | None = None
    """`tokens` or `samples`."""
    saved: int | None = None
    """The newest step that a new attempt can continue from, 0 before the first save; None if the program does not report saves."""
    written_s: float | None = None
    """When the rank wrote this, in seconds since 1970 by this machine's clock."""

    @property
    def rate(self) -> tuple[float, str] | None:
        """The speed: tokens or samples per second, else steps per second; None if it is unknown."""
        if self.step_s is None:
            return None
        if self.per_step is None or self.unit is None:
            return 1 / self.step_s, "steps"
        return self.per_step / self.step_s, self.unit

    @property
    def eta_s(self) -> float | None:
        """The seconds that the remaining steps take, counted from `written_s`; None if that is unknown, 0 after the last step."""
        if self.phase == DONE or (self.steps is not None and self.step >= self.steps):
            return 0.0
        return None if self.steps is None or self.step_s is None else (self.steps - self.step) * self.step_s

    @property
    def unsaved(self) -> int | None:
        """The steps that are lost if the run ends now; None if the program does not report what it saves."""
        return None if self.saved is None else max(0, self.step - self.saved)

    @property
    def unsaved_s(self) -> float | None:
        """The time that these steps took; None if that is unknown."""
        return None if self.unsaved is None or self.step_s is None else self.unsaved * self.step_s

    def age_s(self, now_s: float) -> float | None:
        return None if self.written_s is None else max(0.0, now_s - self.written_s)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form, with the derived values; JSON has no NaN, so a loss that is none is null."""
        loss = self.loss if self.loss is not None and math.isfinite(self.loss) else None
        rate, unit = self.rate or (None, None)
        derived = {"rate": rate, "rate_unit": unit and f"{unit}/s", "eta_s": self.eta_s, "unsaved": self.unsaved}
        return {**asdict(self), "loss": loss, **derived}


def training_of(progress: Mapping[int, Mapping[str, Any]]) -> Training | None:
    """The training by the content of the progress files, by rank; None if no rank has reported a step."""
    steps = {rank: step for rank, report in progress.items() if (step := _whole(report.get("step"))) is not None}
    if not steps:
        return None
    rank = 0 if 0 in steps else max(steps, key=lambda rank: steps[rank])
    report = progress[rank]
    phase, unit = report.get("phase"), report.get("unit")
    saved = [saved_step(each) or 0 for each in progress.values() if "saved" in each]
    # some frameworks log on the last rank
    losses = (_number(each.get("loss")) for each in (report, *progress.values()))
    return Training(
        step=steps[rank],
        steps=_whole(report.get("steps")),
        phase=phase if isinstance(phase, str) else None,
        loss=next((loss for loss in losses if loss is not None), None),
        step_s=_positive(report.get("step_s")),
        per_step=_positive(report.get("per_step")),
        unit=unit if unit in ("tokens", "samples") else None,
        saved=max(saved, default=None),
        written_s=_positive(report.get("time")),
    )


class Pace:
    """The speed of a program that does not report it, by the steps at successive looks; for one attempt."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def add(self, training: Training) -> Training:
        """The same training, with `step_s` once two looks at different steps have shown it, unless the program reports it."""
        at_s = training.written_s
        if training.step_s is not None or at_s is None:
            return training
        if self._looks and training.step < self._looks[-1][1]:
            self._looks.clear()
        if not self._looks or training.step > self._looks[-1][1]:
            self._looks.append((at_s, training.step))
        while len(self._looks) > 2 and at_s - self._looks[1][0] >= KEPT_S:  # noqa: PLR2004  two looks show a speed
            self._looks.popleft()
        (first_s, first), (last_s, last) = self._looks[0], self._looks[-1]
        has_moved = last > first and last_s > first_s
        return replace(training, step_s=(last_s - first_s) / (last - first) if has_moved else None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _positive(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0 < number < math.inf else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
