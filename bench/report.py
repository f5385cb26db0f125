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
    """The figures in Markdown, as docs/benchmarks.md has them."""
    facts = "".join(f"- {name}: {value}\n" for name, value in machine.items())
    intro = f"Medians of {repetitions} runs, in brackets the shortest and the longest.\n\n{facts}"
    return "\n".join([intro, *map(_section, measures)])


def as_json(machine: Mapping[str, str], measures: Sequence[Measure], *, repetitions: int) -> str:
    """The figures of every run as JSON."""
    return json.dumps(
        {"machine": dict(machine), "repetitions": repetitions, "measures": [_as_object(m) for m in measures]}, indent=1
    )


def replace_figures(file: Path, text: str) -> None:
    """Replace the text between the lines BEGIN and END of the file."""
    head, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    file.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def has_figures(file: Path) -> bool:
    """True if the file has the lines BEGIN and END."""
    return file.is_file() and END in file.read_text(encoding="utf-8").partition(BEGIN)[2]


def _section(measure: Measure) -> str:
    figures = measure.figures
    head = f"| | {' | '.join(figures)} | ratio |\n|---|{'---|' * (len(figures) + 1)}\n"
    rows = "".join(_row(series, measure) for series in measure.series)
    ratio = f"Ratio: {figures[0]}, against {measure.reference}."
    targets = "".join(f"- {sentence}\n" for sentence in _sentences(measure))
    return f"## {measure.title}\n{measure.description} {ratio}\n\n{head}{rows}\n{targets}"


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
        texts = [_text(value, figure) for value in (statistics.median(values), min(values), max(values))]
        cells.append(f"{texts[0]} ({texts[1]} - {texts[2]})")
    median, reference = (_median(measure, name, measure.figures[0]) for name in (series.name, measure.reference))
    ratio = f"{median / reference:.2f}" if median and reference else ""
    return f"| {series.name} | {' | '.join(cells)} | {ratio} |\n"


def _text(value: float, figure: str) -> str:
    unit = UNITS.get(figure)
    return _seconds(value) if unit is None else f"{value:,.0f}{unit}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _sentences(measure: Measure) -> list[str]:
    return [f"{_promise(target)}: {_verdict(measure, target)}" for target in measure.targets]


def _promise(target: Target) -> str:
    if target.baseline is None:
        limit = "in at most" if target.figure not in UNITS else "at most"
        worst = ", in the worst run" if target.worst else ""
        return f"{target.contestant}: {target.figure} {limit} {_limit(target)}{worst}"
    if target.least:
        return f"{target.contestant}: {target.figure} at least {target.limit:g} times that of {target.baseline}"
    if target.beyond:
        return f"{target.contestant}: {target.figure} at most {_limit(target)} later than {target.baseline}"
    if target.figure in UNITS:
        return f"{target.contestant}: {target.figure} at most {target.limit:g} times that of {target.baseline}"
    limit = "sooner than" if target.limit == 1.0 else f"in at most {target.limit:g} times the time of"
    return f"{target.contestant}: {target.figure} {limit} {target.baseline}"


def _limit(target: Target) -> str:
    unit = UNITS.get(target.figure)
    return f"{target.limit:g} s" if unit is None else f"{target.limit:g}{unit}"


def _verdict(measure: Measure, target: Target) -> str:
    value = _worst(measure, target) if target.worst else _median(measure, target.contestant, target.figure)
    baseline = 1.0 if target.baseline is None else _median(measure, target.baseline, target.figure)
    if value is None or baseline is None:
        return "**not measured**"
    if target.beyond:
        return (
            f"{_text(value - baseline, target.figure)}, {'met' if value - baseline <= target.limit else '**missed**'}"
        )
    if target.least:
        return f"{value / baseline:.3f} times as many, {'met' if value / baseline >= target.limit else '**missed**'}"
    ratio = f"{value / baseline:.2f} times as {'much' if target.figure in UNITS else 'long'}"
    text = _text(value, target.figure) if target.baseline is None else ratio
    return f"{text}, {'met' if value / baseline <= target.limit else '**missed**'}"


def _median(measure: Measure, name: str, figure: str) -> float | None:
    return next((series.median(figure) for series in measure.series if series.name == name), None)


def _worst(measure: Measure, target: Target) -> float | None:
    series = next(series for series in measure.series if series.name == target.contestant)
    return max(series.figures[target.figure]) if series.error is None else None


def _as_object(measure: Measure) -> dict[str, object]:
    medians = {s.name: {figure: s.median(figure) for figure in measure.figures} for s in measure.series}
    return {**asdict(measure), "medians": medians, "targets": _sentences(measure)}
