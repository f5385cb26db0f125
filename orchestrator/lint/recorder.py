"""Records the assignments of a script while it is followed, with what is exported."""

from __future__ import annotations

import re
import shlex
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from orchestrator.lint.assignment import Assignment, Word, hole, known
from orchestrator.lint.expand import Variables
from orchestrator.variables import VARIABLES

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
NAME = re.compile(r"[A-Za-z_]\w*")
_BLANKS_OF_EXPORT = "blanks around `=`: bash exports the name, and refuses `=` and the value as names"
_BLANKS = "blanks around `=`: bash takes the name for a command"
_NOT_EXPORTED = "is not exported, so the training does not get it"


class Recorder:
    """The assignments of a script and of the files that it sources; `around` are the branches that are followed now."""

    def __init__(self, text: str, file: str, first_line: int) -> None:
        self.exported: set[str] = set()
        self.exports_all = False
        self.around: tuple[tuple[int, int], ...] = ()
        self._assignments: list[Assignment] = []
        self._plain: list[tuple[int, str]] = []
        """Indices of the assignments of the shell alone, with the corrected text of each."""
        self._recorded: set[tuple[str, int, str]] = set()
        self._enter(text, file, first_line)

    def _enter(self, text: str, file: str, first_line: int) -> None:
        self._text, self.file, self._first_line = text, file, first_line
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def unique(self, offset: int) -> int:
        """A number for this offset that none of another file has."""
        return offset + (zlib.crc32(self.file.encode()) << 32)

    @contextmanager
    def within(self, text: str, file: str) -> Iterator[None]:
        """Record what a file that the script sources assigns."""
        before = self._text, self.file, self._first_line
        self._enter(text, file, 1)
        try:
            yield
        finally:
            self._enter(*before)

    def line(self, offset: int) -> int:
        return bisect_right(self._lines, offset) + self._first_line - 1

    def is_pair(self, word: Word) -> bool:
        """True if the script has `NAME=` there, outside of quotes."""
        return ASSIGNMENT.match(self._text, word.start, word.end) is not None

    def assign(self, word: Word, variables: Variables, *, is_exported: bool, is_of_command: bool = False) -> None:
        """Record a word `NAME=VALUE`; one of a command does not last."""
        match = ASSIGNMENT.match(word.pattern)
        if match is None:
            return
        name, value = match[1], word.pattern[match.end() :]
        if match[2]:
            value = variables.get(name) + value if name in variables.values else hole()
        if not is_of_command:
            variables.values[name] = value
            variables.arrays.pop(name, None)
        if (self.file, word.start, value) in self._recorded:
            return
        self._recorded.add((self.file, word.start, value))
        is_whole = self._text.startswith(name, word.start) or self._text[word.start : word.start + 1] in "'\""
        start, end = (word.start, word.end) if is_whole else (None, None)
        if not is_exported:
            self._plain.append((len(self._assignments), self._text[start:end] if is_whole else ""))
        elif not is_of_command:
            self.exported.add(name)
        found = Assignment(name, None if match[2] else known(value), self.file, word.line, start=start, end=end)
        self._assignments.append(replace(found, pattern=value, is_of_command=is_of_command, branches=self.around))

    def assign_default(self, name: str, value: str, offset: int) -> None:
        """Record `${NAME:=VALUE}`."""
        if (self.file, offset, value) not in self._recorded:
            self._recorded.add((self.file, offset, value))
            self._plain.append((len(self._assignments), ""))
            line = self.line(offset)
            found = Assignment(name, known(value), self.file, line, pattern=value, branches=self.around)
            self._assignments.append(found)

    def export_list(self, value: str, line: int, variables: Variables) -> None:
        """Record the variables of `--export=ALL,NAME=VALUE`."""
        for entry in value.split(","):
            name, equals, given = entry.partition("=")
            if equals and NAME.fullmatch(name):
                self.exported.add(name)
                variables.values[name] = given
                self._assignments.append(Assignment(name, known(given), self.file, line, pattern=given))

    def blanks(self, words: Sequence[Word], *, is_export: bool) -> None:
        """Record `export NAME = VALUE`, or `NAME = VALUE` for a known name, as a fault."""
        index = next((index for index, word in enumerate(words) if word.value == "="), 0)
        if not index or NAME.fullmatch(words[index - 1].pattern) is None:
            return
        name, end = words[index - 1], words[min(index + 1, len(words) - 1)]
        if not is_export and (index > 1 or name.pattern not in VARIABLES):
            return
        value = end.pattern if index + 1 < len(words) else ""
        export = "" if is_export else "export "
        mended = f"{export}{name.pattern}={shlex.quote(value)}" if known(value) is not None else None
        fault = _BLANKS_OF_EXPORT if is_export else _BLANKS
        found = Assignment(name.pattern, known(value), self.file, name.line, (), name.start, end.end, fault, mended)
        self._assignments.append(replace(found, pattern=value))

    def assignments(self) -> tuple[Assignment, ...]:
        """All of them, with marks for those that the shell keeps for itself, and a fault for the known ones among these."""
        for index, text in () if self.exports_all else self._plain:
            found = self._assignments[index]
            if found.name in self.exported:
                continue
            self._assignments[index] = replace(found, is_exported=False)
            row = VARIABLES.get(found.name)
            if row is not None and row.library != "launchers":  # which set it themselves
                mended = f"export {text}" if text else None
                self._assignments[index] = replace(found, is_exported=False, fault=_NOT_EXPORTED, replacement=mended)
        return tuple(self._assignments)
