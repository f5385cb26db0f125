"""Texts by the columns that they take on a terminal: two for a wide character, none for a combining one."""

from __future__ import annotations


def width_of(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # only for texts that need its tables

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns: cut, with … at the end, if it is wider."""
    if width_of(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    if text.isascii():
        return f"{text[: width - 1]}…"
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, width - 1).rstrip(' ')}…"


def filled(text: str, width: int) -> str:
    """The text in exactly `width` columns: cut, or filled with spaces."""
    text = cut(text, width)
    return text + " " * (width - width_of(text))
