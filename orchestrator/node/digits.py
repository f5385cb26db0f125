"""Numbers in messages."""

from __future__ import annotations


def three_digits(value: float) -> str:
    """The number with at least its three first digits, and without an exponent if it is large: 0.25, 12.5, 3350."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004  from here on, all digits are before the point
