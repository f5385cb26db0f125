"""Output of a rank made safe for a terminal, without control characters. The raw bytes stay in the files of its node."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
# C0 but the tab, DEL, C1 (which some terminals obey), line separators, and what turns the direction of writing.
_UNSEEN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def is_printable(lines: str) -> bool:
    """Whether lines can be shown as they are, without a look at each."""
    return lines.replace("\n", "").replace("\t", "").isprintable()


def printable(text: str) -> str:
    r"""One line for a terminal: of a progress bar its last state, colours dropped, other control characters as `\x1b`."""
    if is_printable(text):
        return text
    if "\r" in text:
        text = next((state for state in reversed(text.split("\r")) if state.strip()), "")
    return _UNSEEN.sub(_named, _COLOURS.sub("", text))


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004  what fits in two digits
