"""The colours of states and severities, where the output has colours (console.has_colour)."""

from __future__ import annotations

import re

_RED, _GREEN, _YELLOW, _CYAN = 31, 32, 33, 36
_COLOUR_OF = {
    **dict.fromkeys(("FAILED", "LOST", "FAIL", "error", "failing"), _RED),
    **dict.fromkeys(("DONE", "ok", "passed", "healthy"), _GREEN),
    **dict.fromkeys(("STOPPED", "WARN", "warning", "stopped", "gone"), _YELLOW),
    **dict.fromkeys(("PENDING", "STARTING", "RUNNING", "waiting"), _CYAN),
}
_CELL = re.compile(rf"(?:(?<=  )|^)({'|'.join(_COLOUR_OF)})(?=  |$)")


def coloured(word: str) -> str:
    """A state or severity in its colour."""
    return f"\x1b[{_COLOUR_OF[word]}m{word}\x1b[0m"


def with_coloured_cells(line: str) -> str:
    """A line of a table, whose cells that are a state or severity have their colours."""
    return _CELL.sub(lambda found: coloured(found[1]), line)
