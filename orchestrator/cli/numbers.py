"""Numbers, rates and sizes as texts for a person."""

from __future__ import annotations

import math

from orchestrator.node.number_text import three_digits

_THOUSAND = 1000


def number_text(value: object) -> str:
    """A number: 6,561; 5.51; 0.000312. A value that is no number is shown as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= _THOUSAND or isinstance(value, int) else f"{value:.3g}"


def rate_text(rate: float, unit: str) -> str:
    """`3.6k tokens/s`; slow steps as `12 s/step`."""
    if unit == "steps" and rate < 1:
        return f"{1 / rate:.3g} s/step"
    rate = float(f"{rate:.3g}")
    power = min(3, int(math.log10(rate)) // 3) if rate >= _THOUSAND else 0
    return f"{three_digits(rate / _THOUSAND**power)}{('', 'k', 'M', 'G')[power]} {unit}/s"


def size_text(count: float) -> str:
    """A number of bytes: 812 B; 1.5 GB."""
    if count < _THOUSAND:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= _THOUSAND
        if count < _THOUSAND:
            return f"{count:.1f} {unit}"
    return f"{count / _THOUSAND:.1f} TB"
