"""Output of a rank made safe for a terminal, without control characters. The files on the node keep the raw bytes."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
# C0 except the tab, DEL, C1 (which some terminals obey), line separators, and characters that change the text direction.
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def is_printable(lines: str) -> bool:
    """True if the lines can be shown unchanged."""
    return lines.replace("\n", "").replace("\t", "").isprintable()


def printable(text: str) -> str:
    r"""One line for a terminal: the last state of a progress bar, no colours, other control characters as `\x1b`."""
    if is_printable(text):
        return text
    if "\r" in text:
        text = next((state for state in reversed(text.split("\r")) if state.strip()), "")
    return _CONTROLS.sub(_escaped, _COLOURS.sub("", text))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004  fits in two digits
