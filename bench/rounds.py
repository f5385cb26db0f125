"""Repetition: contestants take turns, A B C A B C, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from bench.processes import CommandFailed

UNITS = {
    "threads": "",
    "open files": "",
    "memory": " MB",
    "estimated memory": " MB",
    "deviation": " %",
    "lines/s": "",
    "MB/s": "",
    "tokens/s": "",
    "MFU": " %",
    "operations": "",
}


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do the job; `run` does it once and returns figures by name, in seconds unless UNITS names another unit."""

    name: str
    run: Callable[[], Mapping[str, float]]


@dataclass(slots=True)
class Series:
    """All runs of one contestant; `error` is the reason why it stopped early."""

    name: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    error: str | None = None

    def median(self, figure: str) -> float | None:
        values = self.figures.get(figure, [])
        return statistics.median(values) if values and self.error is None else None


@dataclass(frozen=True, slots=True)
class Target:
    """
    A promise: the median of a contestant, or its ratio to the median of `baseline`, is at most `limit`.

    `worst`: the worst run instead of the median. `beyond`: the difference from the baseline instead of the ratio.
    `least`: the ratio is at least `limit`.
    """

    contestant: str
    figure: str
    limit: float
    baseline: str | None = None
    worst: bool = False
    beyond: bool = False
    least: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """One table: the figures of all contestants and the targets for them."""

    title: str
    description: str
    reference: str
    """The contestant that the ratios compare with, by the first figure."""
    figures: tuple[str, ...]
    targets: tuple[Target, ...]
    series: tuple[Series, ...]


def run_rounds(contestants: Sequence[Contestant], *, repetitions: int) -> tuple[Series, ...]:
    """Run one uncounted round to warm the caches, then the counted ones. A contestant that fails once is not run again."""
    series = {contestant.name: Series(contestant.name) for contestant in contestants}
    for number in range(repetitions + 1):
        for contestant in contestants:
            contestant_series = series[contestant.name]
            if contestant_series.error is not None:
                continue
            try:
                figures = contestant.run()
            except (CommandFailed, pytest.fail.Exception) as error:  # the latter from `until`
                contestant_series.error = str(error)
                continue
            _report(f"  {number or 'warm-up'}: {contestant.name}: {_first(figures)}")
            for figure, value in figures.items() if number else ():
                contestant_series.figures.setdefault(figure, []).append(value)
    return tuple(series.values())


def _first(figures: Mapping[str, float]) -> str:
    figure, value = next(iter(figures.items()))
    return f"{value:,.0f}{UNITS[figure]} {figure}" if figure in UNITS else f"{value:.3f} s"


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
