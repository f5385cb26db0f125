"""
The extents of quotes, brackets and here-documents of a shell script, found together in one pass.

Together, as each may stand within the others: in `"$(cd "$(dirname "$0")" && pwd)"` the second quote opens and closes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

_BETWEEN_COMMANDS = re.compile(
    r"""
    \\.
    | (?<![^\s;&|()])\#[^\n]*                                         # a comment
    | (?<![^\s;&|()`])(?:case(?=[ \t]+[^\n;]{1,200}?\sin\b)|esac\b)
    | <<< | <<(?P<tabs>-?)[ \t]*(?:'(?P<single>[^'\n]*)'|"(?P<double>[^"\n]*)"|\\?(?P<plain>[^\s;&|<>()'"]+))
    | \n | \$' | ' | " | ` | \$\(\( | \$[({] | \$\# | =\( | \(\( | [()]
    """,
    re.VERBOSE | re.DOTALL,
)
_WITHIN = re.compile(r"""\\.|\$'|'|"|`|\$\(\(|\$[({]|\$\#|\}""", re.DOTALL)
"""The same within double quotes and within the braces of an expansion."""
_PLAIN_IN_QUOTES = ("'", "$'", "}")
_UNTIL_BACKQUOTE = re.compile(r"(?:[^\\`]|\\.)*`", re.DOTALL)
_UNTIL_QUOTE = re.compile(r"(?:[^\\']|\\.)*'", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Extents:
    """
    `closing` is the offset of the closing character by that of the opening one, for quotes and for the brackets of expansions and arrays.

    `operators` is the end of a here-document's delimiter by the offset of the `<<`, `documents` the end of the texts that follow a line by
    the offset of that line's end. `unclosed` is the offset of what never closes, where reading has to stop; None if everything closes.
    """

    closing: Mapping[int, int]
    operators: Mapping[int, int]
    documents: Mapping[int, int]
    unclosed: int | None = None


class _Open(NamedTuple):
    """A quote or bracket that is open. Commands stand within `$(…)`, arithmetic within `$((…))`."""

    start: int
    closing: str
    has_commands: bool = False
    is_arithmetic: bool = False


class _Document(NamedTuple):
    """A here-document whose text begins after the line."""

    start: int
    delimiter: str
    has_tabs: bool


def find_extents(text: str) -> Extents:
    """Scan a script. No text is an error."""
    return _Scan(text).run()


class _Scan:
    """One pass over the text; `_position` is the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._open: list[_Open] = []
        self._cases: list[int] = []
        """The depth of each `case` within brackets: its patterns end with a bracket that nothing opens."""
        self._pending: list[_Document] = []
        self._closing: dict[int, int] = {}
        self._operators: dict[int, int] = {}
        self._documents: dict[int, int] = {}
        self._unclosed: int | None = None

    def run(self) -> Extents:
        while self._unclosed is None:
            has_commands = not self._open or self._open[-1].has_commands
            found = (_BETWEEN_COMMANDS if has_commands else _WITHIN).search(self._text, self._position)
            if found is None:
                break
            self._position = found.end()
            if has_commands:
                self._command(found)
            elif found[0] == self._open[-1].closing:
                self._close(found.start())
            elif self._open[-1].closing == "}" or found[0] not in _PLAIN_IN_QUOTES:
                self._begin(found[0], found.start())
        if self._unclosed is None and self._open:
            self._unclosed = self._open[0].start
        return Extents(self._closing, self._operators, self._documents, self._unclosed)

    def _command(self, found: re.Match[str]) -> None:
        symbol, start = found[0], found.start()
        is_arithmetic = bool(self._open) and self._open[-1].is_arithmetic
        if symbol == "\n":
            self._skip_documents(start)
        elif is_arithmetic and symbol[0] in "#<":
            self._position = start + 1
        elif symbol.startswith("<<") and symbol != "<<<":
            delimiter = found["single"] or found["double"] or found["plain"] or ""
            self._operators[start] = found.end()
            self._pending.append(_Document(start, delimiter, bool(found["tabs"])))
        elif symbol == "case" and self._open:
            self._cases.append(len(self._open))
        elif symbol == "esac" and self._cases:
            self._cases.pop()
        elif symbol in ("=(", "((", "(", ")"):
            self._bracket(symbol, start)
        else:
            self._begin(symbol, start)

    def _bracket(self, symbol: str, start: int) -> None:
        """Take a bracket of an array, of arithmetic, or around commands, which matters within an expansion only."""
        in_pattern = bool(self._cases) and self._cases[-1] == len(self._open)
        if symbol == "=(":
            self._open.append(_Open(start + 1, ")", has_commands=True))
        elif symbol == "((" and not self._open:
            self._open += [_Open(start + index, ")", has_commands=True, is_arithmetic=True) for index in range(2)]
        elif symbol == ")":
            if self._open and not in_pattern:
                self._close(start)
        else:
            self._position = start + 1
            if self._open and not in_pattern:
                self._open.append(self._open[-1]._replace(start=start))

    def _begin(self, symbol: str, start: int) -> None:
        if symbol == '"':
            self._open.append(_Open(start, '"'))
        elif symbol == "'":
            self._skip(start, self._text.find("'", start + 1))
        elif symbol == "$'":
            found = _UNTIL_QUOTE.match(self._text, start + 2)
            self._skip(start + 1, found.end() - 1 if found else -1)
        elif symbol == "`":
            found = _UNTIL_BACKQUOTE.match(self._text, start + 1)
            self._skip(start, found.end() - 1 if found else -1)
        elif symbol == "${":
            self._open.append(_Open(start + 1, "}"))
        elif symbol in ("$(", "$(("):
            is_arithmetic = symbol == "$(("
            for index in range(1, len(symbol)):
                self._open.append(_Open(start + index, ")", has_commands=True, is_arithmetic=is_arithmetic))

    def _skip(self, start: int, end: int) -> None:
        if end < 0:
            self._unclosed = self._open[0].start if self._open else start
        else:
            self._closing[start] = end
            self._position = end + 1

    def _close(self, end: int) -> None:
        self._closing[self._open.pop().start] = end
        while self._cases and self._cases[-1] > len(self._open):
            self._cases.pop()

    def _skip_documents(self, line_end: int) -> None:
        for document in self._pending:
            tabs = "\t*" if document.has_tabs else ""
            last = re.compile(f"^{tabs}{re.escape(document.delimiter)}\r?$", re.MULTILINE)
            found = last.search(self._text, self._position)
            if found is None:
                self._unclosed = self._open[0].start if self._open else document.start
                return
            self._position = min(found.end() + 1, len(self._text))
            self._documents[line_end] = self._position
        self._pending.clear()
