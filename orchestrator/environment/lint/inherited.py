"""The variables that a launch script replaces or removes of those that it inherits; `${NAME:-default}` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.environment.lint.assignment import Assignment, without_holes
from orchestrator.environment.lint.expand import Variables
from orchestrator.environment.lint.shell import read_shell

_SOURCES = frozenset(("source", "."))


@dataclass(frozen=True, slots=True)
class Setting:
    """
    The value that a script exports under a name, and the line.

    `value` is as the script writes it where a part is known only when it runs; None: the script removes the variable.
    """

    name: str
    value: str | None
    line: int
    is_certain: bool = True
    """False if a branch of the script decides."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """The settings that differ from what the script inherits, and the files that it sources, which are not read."""

    settings: tuple[Setting, ...]
    sourced: tuple[tuple[str, int], ...]
    unread: tuple[int, ...]
    """Lines that are no shell."""


def read_inherited(text: str, file: str, given: Mapping[str, str]) -> Inherited:
    """Read a script that starts with the variables `given`."""
    script = read_shell(text, file, variables=Variables(dict(given)))
    by_name: dict[str, list[Assignment]] = {}
    for found in script.assignments:
        if found.is_exported:
            kept = by_name.get(found.name, []) if found.branches else []
            by_name[found.name] = [*kept, found]
    settings = [
        Setting(found.name, without_holes(found.pattern), found.line, is_certain=not found.branches)
        for assignments in by_name.values()
        for found in assignments
        if found.pattern != given.get(found.name)
    ]
    last = {setting.name: setting.line for setting in settings}
    removed = {word.pattern: word.line for word in script.unset if word.pattern in given}
    settings += (Setting(name, None, line) for name, line in removed.items() if last.get(name, 0) < line)
    sourced = [
        (without_holes(command[1].pattern), command[0].line)
        for command in script.commands
        if command[0].pattern in _SOURCES and len(command) > 1
    ]
    lines = tuple(entry.line for entry in script.unread)
    return Inherited(tuple(sorted(settings, key=lambda setting: setting.line)), tuple(sourced), lines)
