"""Time spans as users type them: 30s, 5m, 2h, 7d."""

from __future__ import annotations

import re

from orchestrator.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(option: str, text: str) -> float:
    """
    The span in seconds.

    Raises:
        UsageError: the text is none; `option` is what it was given for.
    """
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise UsageError(f"{option} {text}: not a time span", hint="as in 30s, 5m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]
