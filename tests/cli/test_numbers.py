"""Numbers and rates have one format in all commands."""

from __future__ import annotations

import pytest

from orchestrator.cli.numbers import number_text, rate_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(6561, "6,561"), (6560.998, "6,561"), (5.5098, "5.51"), (0.0003121, "0.000312"), (True, "True"), ("x", "x")],
)
def test_numbers_have_three_digits_or_are_whole(value: object, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("rate", "unit", "text"),
    [
        (0.08, "steps", "12.5 s/step"),
        (1.0, "steps", "1 steps/s"),
        (12.5, "steps", "12.5 steps/s"),
        (2500.0, "steps", "2.5k steps/s"),
        (0.5, "samples", "0.5 samples/s"),
        (999.96, "tokens", "1k tokens/s"),
        (1000.0, "tokens", "1k tokens/s"),
        (3614.0, "tokens", "3.61k tokens/s"),
        (123_456.0, "tokens", "123k tokens/s"),
        (999_960.0, "tokens", "1M tokens/s"),
        (12_345_678.0, "tokens", "12.3M tokens/s"),
        (2.5e12, "tokens", "2500G tokens/s"),
    ],
)
def test_rates_have_three_digits_and_no_exponent(rate: float, unit: str, text: str) -> None:
    assert rate_text(rate, unit) == text
