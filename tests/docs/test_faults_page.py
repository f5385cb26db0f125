"""docs/faults.md has all rows F1 to F24 and S1 to S17 with their state, and the tests that it cites exist."""

from __future__ import annotations

import re

from tests.paths import ROOT

PAGE = (ROOT / "docs/faults.md").read_text("utf-8")
ROWS = [*(f"F{number}" for number in range(1, 25)), *(f"S{number}" for number in range(1, 18))]
CITED = re.compile(r"([\w/]+\.py)::(test_\w+)")


def _table(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its header row."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


STATES = {row: (state, missing) for row, _, state, missing in _table("State of every row")}
TESTS = _table("Tests of every row")


def test_every_row_is_listed_once_in_order_with_its_state() -> None:
    assert [row for row, *_ in _table("State of every row")] == ROWS
    assert {state for state, _ in STATES.values()} <= {"proved", "partly", "owed"}


def test_rows_that_are_not_proved_name_the_missing_proof() -> None:
    assert [row for row, (state, missing) in STATES.items() if state != "proved" and not missing] == []


def test_every_fault_has_what_orch_does() -> None:
    assert [row for row, *_ in _table("What orch does")] == [row for row in ROWS if row.startswith("F")]


def test_only_rows_that_are_owed_cite_no_test() -> None:
    assert [row for row, *_ in TESTS if row] == [row for row in ROWS if STATES[row][0] != "owed"]


def test_every_cited_test_exists() -> None:
    for *_, cell in TESTS + _table("General rules"):
        found = CITED.fullmatch(cell)
        assert found is not None, cell
        source = (ROOT / "tests" / found[1]).read_text("utf-8")
        assert re.search(rf"^def {found[2]}\(", source, re.MULTILINE), cell
