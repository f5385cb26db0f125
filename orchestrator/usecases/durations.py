"""Time spans as users type them: 30s, 5m, 2h, 7d."""

from __future__ import annotations

import re

from orchestrator.errors import UsageError

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


def clock(span_s: float) -> str:
    """Format a time span for a person, in its two largest units: 45s, 3m12s, 2h05m, 3d04h."""
    minutes, seconds_ = divmod(max(0, int(span_s)), 60)
    hours, minutes_ = divmod(minutes, 60)
    days, hours_ = divmod(hours, 24)
    if days:
        return f"{days}d{hours_:02}h"
    if hours:
        return f"{hours}h{minutes_:02}m"
    return f"{minutes}m{seconds_:02}s" if minutes else f"{seconds_}s"
