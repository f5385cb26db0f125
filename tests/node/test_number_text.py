"""Numbers in messages."""

from __future__ import annotations

import pytest

from orchestrator.node.number_text import three_digits


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.256, "0.256"), (12.54, "12.5"), (100.4, "100"), (3600.0, "3600"), (2e6, "2000000")],
)
def test_large_numbers_have_no_exponent(value: float, text: str) -> None:
    assert three_digits(value) == text
