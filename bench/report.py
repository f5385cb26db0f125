"""Figures as text: Markdown for people and docs/benchmarks.md, JSON for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.rounds import UNITS, Measure, Series, Target

BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def markdown(machine: Mapping[str, str], measures: Sequence[Measure], *, repetitions: int) -> str:
    """Everything, as it stands in docs/benchmarks.md."""
    facts = "".join(f"- {name}: {value}\n" for name, value in machine.items())
    intro = f"Medians of {repetitions} runs, in brackets the shortest and the longest.\n\n{facts}"
    return "\n".join([intro, *map(_section, measures)])


def as_json(machine: Mapping[str, str], measures: Sequence[Measure], *, repetitions: int) -> str:
    """Everything, with each single run."""
    return json.dumps(
        {"machine": dict(machine), "repetitions": repetitions, "measures": [_as_object(m) for m in measures]}, indent=1
    )


def put_between_marks(file: Path, text: str) -> None:
    """Replace what stands between the marks in the file."""
    head, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    file.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def has_marks(file: Path) -> bool:
    """Whether there is something to replace."""
    return file.is_file() and END in file.read_text(encoding="utf-8").partition(BEGIN)[2]


def _section(measure: Measure) -> str:
    figures = measure.figures
    head = f"| | {' | '.join(figures)} | ratio |\n|---|{'---|' * (len(figures) + 1)}\n"
    rows = "".join(_row(series, measure) for series in measure.series)
    ratio = f"Ratio: {figures[0]}, against {measure.reference}."
    promises = "".join(f"- {sentence}\n" for sentence in _sentences(measure))
    return f"## {measure.title}\n{measure.note} {ratio}\n\n{head}{rows}\n{promises}"


def _row(series: Series, measure: Measure) -> str:
    if series.error is not None:
        text = series.error.replace("|", "\\|").replace("\n", " ")
        return f"| {series.name} | failed: {text} |{' |' * len(measure.figures)}\n"
    cells = []
    for figure in measure.figures:
        values = series.figures.get(figure, [])
        if not values:
            cells.append("")
            continue
        shown = [_shown(value, figure) for value in (statistics.median(values), min(values), max(values))]
        cells.append(f"{shown[0]} ({shown[1]} - {shown[2]})")
    own, other = (_median(measure, name, measure.figures[0]) for name in (series.name, measure.reference))
    ratio = f"{own / other:.2f}" if own and other else ""
    return f"| {series.name} | {' | '.join(cells)} | {ratio} |\n"


def _shown(value: float, figure: str) -> str:
    unit = UNITS.get(figure)
    return _seconds(value) if unit is None else f"{value:,.0f}{unit}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _sentences(measure: Measure) -> list[str]:
    return [f"{_promise(target)}: {_verdict(measure, target)}" for target in measure.targets]


def _promise(target: Target) -> str:
    if target.other is None:
        limit = "in at most" if target.figure not in UNITS else "at most"
        worst = ", in the worst run" if target.worst else ""
        return f"{target.contestant}: {target.figure} {limit} {_limit(target)}{worst}"
    if target.least:
        return f"{target.contestant}: {target.figure} at least {target.limit:g} times those of {target.other}"
    if target.beyond:
        return f"{target.contestant}: {target.figure} at most {_limit(target)} later than {target.other}"
    what = "sooner than" if target.limit == 1.0 else f"after at most {target.limit:g} times what it takes"
    return f"{target.contestant}: {target.figure} {what} {target.other}"


def _limit(target: Target) -> str:
    unit = UNITS.get(target.figure)
    return f"{target.limit:g} s" if unit is None else f"{target.limit:g}{unit}"


def _verdict(measure: Measure, target: Target) -> str:
    own = _worst(measure, target) if target.worst else _median(measure, target.contestant, target.figure)
    other = 1.0 if target.other is None else _median(measure, target.other, target.figure)
    if own is None or other is None:
        return "**not measured**"
    if target.beyond:
        return f"{_shown(own - other, target.figure)}, {'met' if own - other <= target.limit else '**missed**'}"
    if target.least:
        return f"{own / other:.3f} times as many, {'met' if own / other >= target.limit else '**missed**'}"
    value = _shown(own, target.figure) if target.other is None else f"{own / other:.2f} times as long"
    return f"{value}, {'met' if own / other <= target.limit else '**missed**'}"


def _median(measure: Measure, name: str, figure: str) -> float | None:
    return next((series.median(figure) for series in measure.series if series.name == name), None)


def _worst(measure: Measure, target: Target) -> float | None:
    series = next(series for series in measure.series if series.name == target.contestant)
    return max(series.figures[target.figure]) if series.error is None else None


def _as_object(measure: Measure) -> dict[str, object]:
    medians = {s.name: {figure: s.median(figure) for figure in measure.figures} for s in measure.series}
    return {**asdict(measure), "medians": medians, "targets": _sentences(measure)}
