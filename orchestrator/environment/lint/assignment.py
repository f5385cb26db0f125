"""Assignments of variables as the readers find them: name, value, file, line, and the range of the text for mending it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """
    One `NAME=VALUE`; `value` None: known only when the script runs.

    `is_exported` is False for a variable that a script keeps for itself. `start` and `end` are the range of `NAME=VALUE` in the file's text, where there is one. `fault` is a fault of the line itself,
    with `replacement` for the range: the corrected text, "" to remove it, None if unknown.
    """

    name: str
    value: str | None
    file: str
    line: int
    nodes: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    fault: str = ""
    replacement: str | None = None
    is_exported: bool = True


_NAME = re.compile(r"([A-Za-z_]\w*)=")


def split_assignment(text: str) -> tuple[str, str]:
    """Name and value of a text `NAME=VALUE`; any other text, such as `export NAME=VALUE`, is the value, without a name."""
    found = _NAME.match(text)
    return (found[1], text[found.end() :]) if found else ("", text)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line; `value` None: known only when the script runs."""

    value: str | None
    line: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Script:
    """The assignments and commands of a shell script, in order; `stopped_at` is the line from which nothing could be read."""

    assignments: tuple[Assignment, ...]
    commands: tuple[tuple[Word, ...], ...] = ()
    background: frozenset[int] = frozenset()
    """Indices of the commands that end with `&`."""
    stopped_at: int | None = None
