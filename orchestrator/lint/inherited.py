"""The variables that a launch script replaces or removes of those that it inherits; `${NAME:-default}` keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.lint.assignment import Assignment, Script, without_holes
from orchestrator.lint.expand import Variables
from orchestrator.lint.shell import SourcedText, nothing, read_shell


@dataclass(frozen=True, slots=True)
class Setting:
    """
    The value that a script exports under a name, and the place.

    `value` is as the script writes it where a part is known only when it runs; None: the script removes the variable.
    """

    name: str
    value: str | None
    file: str
    line: int
    is_certain: bool = True
    """False if a branch of the script decides."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """The settings that differ from what the script inherits, and what was not read: files that it sources, and lines that are no shell."""

    settings: tuple[Setting, ...]
    unread_files: tuple[tuple[str, str, int], ...]
    """The path, and the file and line of the command that sources it."""
    unread: tuple[tuple[str, int], ...]


def read_inherited(text: str, file: str, given: Mapping[str, str], sourced: SourcedText = nothing) -> Inherited:
    """Read a script that starts with the variables `given`, and the files that it sources."""
    script = read_shell(text, file, variables=Variables(dict(given)), sourced=sourced)
    by_name: dict[str, list[Assignment]] = {}
    for found in script.assignments:
        if found.is_exported:
            kept = by_name.get(found.name, []) if found.branches else []
            by_name[found.name] = [*kept, found]
    settings = [
        Setting(found.name, without_holes(found.pattern), found.file, found.line, is_certain=not found.branches)
        for assignments in by_name.values()
        for found in assignments
        if found.pattern != given.get(found.name)
    ]
    scripts = list(_with_sourced(script))
    for each in scripts:
        last = {setting.name: setting.line for setting in settings if setting.file == each.file}
        removed = {word.pattern: word.line for word in each.unset if word.pattern in given}
        settings += (Setting(name, None, each.file, line) for name, line in removed.items() if last.get(name, 0) < line)
    return Inherited(
        tuple(sorted(settings, key=lambda setting: (setting.file != file, setting.file, setting.line))),
        tuple((without_holes(word.pattern), each.file, word.line) for each in scripts for word in each.unread_files),
        tuple((each.file, entry.line) for each in scripts for entry in each.unread),
    )


def _with_sourced(script: Script) -> Iterator[Script]:
    yield script
    for each in script.sourced:
        yield from _with_sourced(each)
