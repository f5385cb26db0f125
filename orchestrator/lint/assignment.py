"""Assignments and commands as the readers find them in files, with the range of the text for mending it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

HOLE = "\0"
"""Encloses the name of a variable whose value is known only when the script runs; `\\0\\0` for anything else unknown."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """
    One `NAME=VALUE`; `value` None: known only when the script runs.

    `is_exported` is False for a variable that a script keeps for itself. `start` and `end` are the range of `NAME=VALUE` in the file's text, where there is one. `fault` is a fault of the line itself,
    with `replacement` for the range: the corrected text, "" to remove it, None if unknown. `pattern` is the value with a hole for each
    part that is unknown.
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
    pattern: str = ""
    is_of_command: bool = False
    """Set for one command only, as in `NAME=VALUE python train.py`."""
    branches: tuple[tuple[int, int], ...] = ()
    """The branches of `if` and `case` around it: a number for the statement, number of the branch."""

    def excludes(self, second: Assignment) -> bool:
        """True if at most one of the two runs: they are in different branches of one statement."""
        branches = dict(self.branches)
        return any(branches.get(statement, branch) != branch for statement, branch in second.branches)


_NAME = re.compile(r"([A-Za-z_]\w*)=")
_HOLE = re.compile(f"{HOLE}([^{HOLE}]*){HOLE}")


def split_assignment(text: str) -> tuple[str, str]:
    """Name and value of a text `NAME=VALUE`; any other text, such as `export NAME=VALUE`, is the value, without a name."""
    found = _NAME.match(text)
    return (found[1], text[found.end() :]) if found else ("", text)


def known(pattern: str) -> str | None:
    """The value if no part of it is unknown."""
    return None if HOLE in pattern else pattern


def hole(name: str = "") -> str:
    return f"{HOLE}{name}{HOLE}"


def holes(pattern: str) -> frozenset[str]:
    """The names of the variables that a value needs."""
    return frozenset(filter(None, _HOLE.findall(pattern)))


def without_holes(pattern: str) -> str:
    """The value as a script writes it: `$NAME` for what is unknown."""
    return _HOLE.sub(lambda found: f"${{{found[1]}}}" if found[1] else "$_", pattern)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line; `value` None: known only when the script runs. `pattern` has a hole for each unknown part."""

    value: str | None
    line: int
    start: int
    end: int
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that is not in this language; `is_rest`: nor could anything below it be read."""

    line: int
    is_rest: bool = False
    language: str = "shell"


@dataclass(frozen=True, slots=True)
class Directive:
    """
    An option in a `#SBATCH` comment.

    `is_late`: it stands below the first command, where sbatch ignores it. `is_inherited`: it is of the script around the text that has it.
    """

    name: str
    value: str
    line: int
    is_late: bool = False
    is_inherited: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """
    The assignments and commands of a shell script, in the order in which they run.

    `embedded` are the scripts within it: texts of `bash -c`, here-documents that are run or written to a file. `sourced` are the commands
    of the files that it sources, whose assignments are among its own. `file` is the file that it is in.
    """

    assignments: tuple[Assignment, ...]
    commands: tuple[tuple[Word, ...], ...] = ()
    background: frozenset[int] = frozenset()
    """Indices of the commands that end with `&`."""
    unread: tuple[Unread, ...] = ()
    directives: tuple[Directive, ...] = ()
    embedded: tuple[Script, ...] = ()
    exported: Mapping[str, str] | None = None
    """The exported variables at the end of the script, as patterns; None for files that are no scripts."""
    unset: tuple[Word, ...] = ()
    """The names that the script removes."""
    sourced: tuple[Script, ...] = ()
    unread_files: tuple[Word, ...] = ()
    """The files that it sources and that could not be read here."""
    file: str = ""
