"""docs/faults.md names the tests that are there, for every row."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "faults.md").read_text("utf-8")
FAULTS = (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 19, 21, 23)
ATTACKS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16)


def test_every_row_has_a_test() -> None:
    rows = re.findall(r"^\| ([FS]\d+) \|", PAGE, re.MULTILINE)
    assert rows == [*(f"F{number}" for number in FAULTS), *(f"S{number}" for number in ATTACKS)]


def test_every_test_that_is_named_is_there() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("|")][2:]
    named = [re.fullmatch(r"\|.*\|.*\| ([\w/]+\.py)::(test_\w+) \|", line) for line in lines]
    for line, found in zip(lines, named, strict=True):
        assert found is not None, line
        assert f"def {found[2]}(" in (TESTS / found[1]).read_text("utf-8"), line
