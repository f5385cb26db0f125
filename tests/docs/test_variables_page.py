"""docs/variables.md is the table of variables. After a change of the table: `pytest tests/docs/test_variables_page.py --update`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from orchestrator.environment.table import VARIABLES, Row
from orchestrator.environment.table.conditions import phrase
from tests.paths import ROOT

PAGE = ROOT / "docs" / "variables.md"
HEAD = f"""\
# Variables that `orch lint` knows

Generated from `orchestrator/environment/table/`, {len(VARIABLES)} variables. A default `18 (2.14)` is that of version 2.14 and newer; `auto` is
chosen at run time. A verdict on `some` values has a pattern, which is in that folder. How values are judged is in
[orch lint](lint.md).
"""
TITLES = {
    "NCCL": "NCCL",
    "torch": "torch",
    "Enflame": "ECCL, torch_gcu and TopsRider",
    "other": "OpenMP, CUDA, UCX, DeepSpeed and launchers",
}


def _title(row: Row) -> str:
    library = row.source.partition(" ")[0] if row.library == "nothing" else row.library
    if library in ("ECCL", "torch_gcu", "TopsRider", "Enflame's"):
        return TITLES["Enflame"]
    return TITLES.get(library, TITLES["other"])


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _verdict_rows(row: Row) -> Iterator[str]:
    for verdict in row.verdicts:
        plain = verdict.value.removeprefix("(?i)").replace("0*1", "1").replace("|", ", ")
        values = plain if re.fullmatch(r"[\w, ]+", plain) else "some" if verdict.value else "every"
        values = f"above {verdict.above}" if verdict.above is not None else values
        values = f"below {verdict.below}" if verdict.below is not None else values
        cells = (f"`{row.name}`", verdict.severity.value, values, phrase(verdict.when), verdict.reason)
        yield f"| {' | '.join(map(_cell, cells))} |"


def _variable_row(row: Row) -> str:
    versions = f" ≥ {row.since}" if row.since else f" < {row.until}" if row.until else ""
    default = ", ".join(f"{text} ({first})" if first else text for first, text in row.defaults().items())
    cells = (f"`{row.name}`", row.text, row.kind.text, default, row.library + versions)
    return f"| {' | '.join(map(_cell, cells))} |"


def _lines() -> Iterator[str]:
    yield HEAD
    for title, heading in TITLES.items():
        rows = sorted((row for row in VARIABLES.values() if _title(row) == heading), key=lambda row: row.name)
        yield f"## {heading}\n"
        yield "| variable | meaning | accepts | default | read by |"
        yield "|---|---|---|---|---|"
        yield from map(_variable_row, rows)
        yield f"\n### Verdicts on {title} variables\n"
        yield "| variable | level | values | only | reason |"
        yield "|---|---|---|---|---|"
        yield from (line for row in rows for line in _verdict_rows(row))
        yield ""


def test_page_is_current(request: pytest.FixtureRequest) -> None:
    text = "\n".join(_lines())
    if request.config.getoption("--update"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text
