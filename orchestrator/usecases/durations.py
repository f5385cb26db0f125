"""Time spans as users type them: 30s, 5m, 2h, 7d."""

from __future__ import annotations

import re

from orchestrator.errors import UsageError
from orchestrator.node.number_text import clock

__all__ = ["clock", "seconds", "worded"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(option: str, text: str) -> float:
    """Convert a time span to seconds; UsageError names `option` if the text is not one."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match is None:
        raise UsageError(f"{option} {text}: not a time span", hint="as in 30s, 5m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


def worded(span_s: float) -> str:
    """Format a time span for a person, in its largest unit."""
    unit = next((unit for unit in "dhm" if span_s >= _UNITS[unit]), "s")
    return f"{span_s / _UNITS[unit]:.0f}{unit}"
