"""
Read a shell script without running it: its assignments, and its command lines as words.

Quotes, continued lines, comments, here-documents and `${NAME:-default}` are understood. A value that needs a command, arithmetic or
a variable that the script does not set is unknown (None). No text is an error: reading stops where a quote or bracket does not close.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace

from orchestrator.environment.lint.assignment import Assignment, Script, Word
from orchestrator.environment.lint.extents import find_extents
from orchestrator.environment.table import VARIABLES

MAX_VALUE = 1 << 15  # characters; `A=$A$A` in a loop of lines would double it with each
MAX_NESTING = 10  # of ${A:-${B:-…}}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_PARAMETER = re.compile(r"([A-Za-z_]\w*)(?:(:?[-=])|$)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_RESERVED = frozenset("if then else elif do while until ! { } time exec nohup sudo command".split())
_EXPORTERS = frozenset(("export", "env"))
_DECLARERS = frozenset(("declare", "typeset", "local", "readonly"))
_VARIABLE_OPTIONS = ("-e", "-x", "--env", "-env", "-genv")
_PRINTERS = frozenset(("echo", "printf"))
_OPERATORS = "\n;&|()"


def read_shell(text: str, file: str) -> Script:
    return _Reader(text, file).read()


class _Reader:
    """One pass over the text; `_position` is the next character."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._position = 0
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._extents = find_extents(text)
        self._values: dict[str, str | None] = {}
        self._exported: set[str] = set()
        self._plain: list[int] = []
        """Indices of the assignments of the shell alone."""
        self._assignments: list[Assignment] = []
        self._commands: list[tuple[Word, ...]] = []
        self._background: list[int] = []
        self._exports_all = False

    def read(self) -> Script:
        words: list[Word] = []
        unclosed = len(self._text) + 1 if self._extents.unclosed is None else self._extents.unclosed
        while self._position < len(self._text):
            character = self._text[self._position]
            if character in " \t\r" or self._text.startswith("\\\n", self._position):
                self._position += 1 if character != "\\" else 2
            elif character == "#":
                end = self._text.find("\n", self._position)
                self._position = len(self._text) if end < 0 else end
            elif character in "<>" or self._text.startswith("&>", self._position):
                self._redirection()
            elif character in _OPERATORS:
                self._end_command(words, is_background=self._is_background())
                words = []
                self._position = self._extents.documents.get(self._position, self._position + 1)
            else:
                words.append(self._word())
            if self._position >= unclosed:
                return self._script(stopped_at=self._line(unclosed))
        self._end_command(words)
        return self._script()

    def _script(self, stopped_at: int | None = None) -> Script:
        return Script(tuple(self._with_export_faults()), tuple(self._commands), frozenset(self._background), stopped_at)

    def _is_background(self) -> bool:
        """True at a `&` that is not half of a `&&`."""
        start = self._position
        return self._text[start] == "&" and "&" not in (self._text[start - 1], self._text[start + 1 : start + 2])

    def _redirection(self) -> None:
        """Skip an operator; the word after it is a file, or the end mark of a here-document."""
        if self._position in self._extents.operators:
            self._position = self._extents.operators[self._position]
            return
        while self._position < len(self._text) and self._text[self._position] in "<>&|":
            self._position += 1
        while self._position < len(self._text) and self._text[self._position] in " \t":
            self._position += 1
        if self._position < len(self._text) and self._text[self._position] not in "\n;&|()<>#":
            self._word()

    def _word(self) -> Word:
        start = self._position
        array = _ASSIGNMENT.match(self._text, start)
        if array is not None and self._text.startswith("(", array.end()) and array.end() in self._extents.closing:
            self._position = self._extents.closing[array.end()] + 1
            return Word(None, self._line(start), start, self._position)
        value = self._expand(len(self._text), "", 0)
        self._position = max(self._position, start + 1)
        return Word(value, self._line(start), start, self._position)

    def _expand(self, end: int, closing: str, depth: int) -> str | None:
        """
        Read to an unquoted blank or operator, or with `closing` to that character, at most to `end`; return the value.

        `closing` is `"`, or `}` for the default of a parameter.
        """
        parts: list[str] = []
        is_known = True
        while self._position < end:
            character = self._text[self._position]
            if character == closing or (not closing and character in " \t\r\n;&|()<>"):
                break
            part = self._part(character, closing, end, depth)
            is_known = is_known and part is not None
            parts.append(part or "")
        value = "".join(parts)
        return value if is_known and len(value) <= MAX_VALUE else None

    def _part(self, character: str, closing: str, end: int, depth: int) -> str | None:
        """Read one character, quotation or expansion; None if its value is unknown."""
        self._position += 1
        if character == "\\":
            return self._escaped(closing)
        if character in "'\"`":
            return self._quoted(character, end, depth)
        return self._parameter(end, depth) if character == "$" else character

    def _escaped(self, closing: str) -> str:
        following = self._text[self._position : self._position + 1]
        self._position += len(following)
        if following == "\n":
            return ""
        return following if closing != '"' or following in '"\\$`' else f"\\{following}"

    def _quoted(self, quote: str, end: int, depth: int) -> str | None:
        """Read what follows a quote; one that does not close is a plain character, as is a single one within double ones."""
        start = self._position
        close = self._extents.closing.get(start - 1, end)
        if close >= end:
            return quote
        value = self._expand(close, quote, depth) if quote == '"' else self._text[start:close]
        self._position = close + 1
        return None if quote == "`" else value

    def _parameter(self, end: int, depth: int) -> str | None:
        """Read what follows a `$`."""
        opening = self._text[self._position : self._position + 1]
        if opening in ("(", "{", "'"):
            close = self._extents.closing.get(self._position, end)
            if close >= end:
                return None
            inner, self._position = self._position + 1, close + 1
            return self._braced(inner, close, depth) if opening == "{" else None
        match = _NAME.match(self._text, self._position, end)
        if match is None:
            self._position += 1 if opening and opening in "@*#?$!-0123456789" else 0
            return None
        self._position = match.end()
        return self._values.get(match[0])

    def _braced(self, start: int, close: int, depth: int) -> str | None:
        """The value of `${NAME}` or `${NAME:-default}`."""
        match = _PARAMETER.match(self._text[start : min(close, start + 200)])
        if match is None or depth >= MAX_NESTING:
            return None
        if match[1] in self._values or match[2] is None:
            return self._values.get(match[1])
        after, self._position = self._position, start + match.end()
        value = self._expand(close, "}", depth + 1)
        self._position = after
        return value

    def _line(self, offset: int) -> int:
        return bisect_right(self._lines, offset)

    def _end_command(self, words: list[Word], *, is_background: bool = False) -> None:
        begin = 0
        while begin < len(words) and words[begin].value in _RESERVED:
            begin += 1
        command = begin
        while command < len(words) and self._match(words[command]):
            command += 1
        rest = words[command:]
        for word in words[begin:command]:
            self._assign(word, is_exported=bool(rest))
        if not rest:
            return
        if is_background:
            self._background.append(len(self._commands))
        self._commands.append(tuple(rest))
        self._arguments(rest[0].value or "", rest[1:])

    def _match(self, word: Word) -> re.Match[str] | None:
        return _ASSIGNMENT.match(self._text, word.start, word.end)

    def _arguments(self, command: str, arguments: list[Word]) -> None:
        """Record assignments among the arguments, as of export, env, `mpirun -x` and `docker run -e`."""
        options = [word.value or "" for word in arguments if (word.value or "").startswith("-")]
        if command == "set" and (
            any(re.fullmatch("-[a-z]*a[a-z]*", option) for option in options)
            or "allexport" in [word.value for word in arguments]
        ):
            self._exports_all = True
        exports = command in _EXPORTERS or (command in _DECLARERS and any("x" in option for option in options))
        if command in _PRINTERS:
            return
        for before, word in zip([None, *arguments], arguments, strict=False):
            match = self._match(word)
            if match is None and (
                exports or command in _DECLARERS or (before is not None and before.value in _VARIABLE_OPTIONS)
            ):
                match = _ASSIGNMENT.match(word.value or "")  # as in docker run -e "NAME=VALUE"; else it is a text
            if match is None:
                self._exported.update([word.value] if exports and word.value else [])
            elif exports or command in _DECLARERS or match[1] in VARIABLES:
                self._assign(word, is_exported=command not in _DECLARERS or exports)

    def _assign(self, word: Word, *, is_exported: bool) -> None:
        match = self._match(word) or _ASSIGNMENT.match(word.value or "")
        assert match is not None  # the caller's condition
        name = match[1]
        value = None if word.value is None or match[2] else word.value[len(match[0]) :]
        self._values[name] = value
        if is_exported:
            self._exported.add(name)
        else:
            self._plain.append(len(self._assignments))
        self._assignments.append(Assignment(name, value, self._file, word.line, start=word.start, end=word.end))

    def _with_export_faults(self) -> list[Assignment]:
        """Mark the variables that the shell keeps for itself, and add a fault to the known ones."""
        for index in [] if self._exports_all else self._plain:
            found = self._assignments[index]
            if found.name in self._exported:
                continue
            self._assignments[index] = replace(found, is_exported=False)
            if found.name in VARIABLES and VARIABLES[found.name].library != "launchers":  # which set it themselves
                source = self._text[found.start : found.end]
                fault = "is not exported, so the training does not get it"
                self._assignments[index] = replace(
                    found, is_exported=False, fault=fault, replacement=f"export {source}"
                )
        return self._assignments
