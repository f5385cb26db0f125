"""Repetition: contestants run in turn, A B C A B C, so that what else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.processes import CommandFailed

UNITS = {"threads": "", "open files": "", "memory": " MB", "lines/s": "", "tokens/s": "", "MFU": " %"}


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way of doing the job; `run` does it once and returns figures by name, in seconds unless UNITS has another unit."""

    name: str
    run: Callable[[], Mapping[str, float]]


@dataclass(slots=True)
class Series:
    """All runs of one contestant; `error` is why there are no more of them."""

    name: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    error: str | None = None

    def median(self, figure: str) -> float | None:
        values = self.figures.get(figure, [])
        return statistics.median(values) if values and self.error is None else None


@dataclass(frozen=True, slots=True)
class Target:
    """
    What is promised: the median of a contestant is at most `limit`; or its ratio to the other's; or how far it is beyond that.

    With `worst` it is not the median, but the worst run; with `least` the ratio is at least `limit`.
    """

    contestant: str
    figure: str
    limit: float
    other: str | None = None
    worst: bool = False
    beyond: bool = False
    least: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """One table: what was measured, and what was promised about it."""

    title: str
    note: str
    reference: str
    """The contestant to which the ratios are, by the first figure."""
    figures: tuple[str, ...]
    targets: tuple[Target, ...]
    series: tuple[Series, ...]


def run_rounds(contestants: Sequence[Contestant], *, repetitions: int) -> tuple[Series, ...]:
    """One round that does not count, to warm caches up, then the others; who fails once does not run again."""
    series = {contestant.name: Series(contestant.name) for contestant in contestants}
    for number in range(repetitions + 1):
        for contestant in contestants:
            own = series[contestant.name]
            if own.error is not None:
                continue
            try:
                figures = contestant.run()
            except CommandFailed as error:
                own.error = str(error)
                continue
            _tell(f"  {number or 'warm-up'}: {contestant.name}: {_first(figures)}")
            for figure, value in figures.items() if number else ():
                own.figures.setdefault(figure, []).append(value)
    return tuple(series.values())


def _first(figures: Mapping[str, float]) -> str:
    figure, value = next(iter(figures.items()))
    return f"{value:,.0f}{UNITS[figure]} {figure}" if figure in UNITS else f"{value:.3f} s"


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
