"""docs/catalogue.md is the catalogue of the code, which docs/diagnose.md explains. After a change of it: `pytest tests/docs/test_diagnose_page.py --update`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from orchestrator.diagnosis.catalogue import CATALOGUE, PROGRAMS
from orchestrator.diagnosis.signature import ALTERNATIVE, Role, Signature
from orchestrator.failure_class import FailureClass
from tests.paths import ROOT

PAGE = ROOT / "docs" / "diagnose.md"
CATALOGUE_PAGE = ROOT / "docs" / "catalogue.md"
HEAD = f"""\
# The catalogue of causes

Generated from `orchestrator/diagnosis/catalogue/`, {len(CATALOGUE)} signatures. The last column has the id, role, class, retry and source,\nwhich [the cause of a failure](diagnose.md) explains.
"""


def _cell(text: str) -> str:
    text = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), text)
    return re.sub(r"([|*<])", r"\\\1", re.sub(r"\s+", " ", text))


def _row(row: Signature) -> str:
    cells = (
        row.cause.partition(ALTERNATIVE)[0],
        row.remedy[0].partition(ALTERNATIVE)[0] if row.remedy else "",
        f"`{row.id}` {row.role.value}, {row.kind.value}: {row.retry.value}, {row.source}",
    )
    return f"| {' | '.join(map(_cell, cells))} |"


def _lines() -> Iterator[str]:
    yield HEAD
    for program, rows in PROGRAMS.items():
        yield f"## {program}\n"
        yield "| cause | first step | signature |"
        yield "|---|---|---|"
        yield from map(_row, rows)
        yield ""


def test_page_of_the_catalogue_is_current(request: pytest.FixtureRequest) -> None:
    text = "\n".join(_lines())
    if request.config.getoption("--update"):
        CATALOGUE_PAGE.write_text(text, "utf-8")
    assert CATALOGUE_PAGE.read_text("utf-8") == text


def test_page_names_every_change_that_can_be_proved() -> None:
    section = PAGE.read_text("utf-8").partition("## Proving a remedy")[2].partition("\n## ")[0]
    named = [(cells[1], cells[2]) for cells in (line.split("|") for line in section.splitlines()) if len(cells) == 4]
    for row in CATALOGUE.values():
        lines = [change for names, change in named if f"`{row.id}`" in names]
        assert len(lines) == (row.change is not None), row.id
        if row.change is not None:
            assert row.change.text in lines[0]
            assert row.change.setting in lines[0]


def test_page_explains_every_role_and_class() -> None:
    page = PAGE.read_text("utf-8")
    assert all(f"| {role.value} |" in page for role in Role if role is not Role.UNKNOWN)
    assert all(f"| `{kind.value}` | {kind.text} | {kind.retry.value} |" in page for kind in FailureClass)
