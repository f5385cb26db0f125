"""Texts are cut and filled by the columns that a terminal gives them."""

from __future__ import annotations

import pytest

from orchestrator.cli.columns import cut, filled, width_of


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("训练中", 6, "训练中"),
        ("训练中", 5, "训练…"),
        ("训练中", 4, "训…"),
        ("训练中", 1, "…"),
        ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
        ("a\u200bb", 2, "a\u200bb"),
        ("ab", 1, "…"),
        ("ab", 0, ""),
    ],
)
def test_wide_and_combining_characters_are_counted_as_a_terminal_does(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
    assert width_of(shown) <= width


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abc", 5, "abc  "),
        ("abcdef", 4, "abc…"),
        ("節點", 5, "節點 "),
        ("節點", 3, "節…"),
        ("節點", 4, "節點"),
        ("節點", 2, "… "),
        ("abc", 0, ""),
    ],
)
def test_filled_text_takes_exactly_the_columns(text: str, width: int, expected: str) -> None:
    assert filled(text, width) == expected
