"""
Expand the words of a shell script as bash does: quotes, escapes, variables, defaults, arrays and the splitting at blanks.

What needs a command, arithmetic or a variable that the script does not set becomes a hole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.lint import syntax
from orchestrator.lint.assignment import HOLE, hole

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_VALUE = 1 << 15  # characters; `A=$A$A` in a loop of lines would double it with each
MAX_NESTING = 40  # of ${A:-${B:-…}}
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`"\\\n])')
_ANSI = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{1,4})|(.))", re.DOTALL)
_ANSI_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_SUBSTITUTIONS = frozenset(("command_substitution", "process_substitution"))
_UNKNOWN = frozenset(("arithmetic_expansion", "brace_expression"))
_SPANS = frozenset(("concatenation", "command_name", "translated_string"))
_DEFAULT = re.compile(r":?[-=]")


@dataclass(slots=True)
class Part:
    """A piece of a word; an unquoted one is split at blanks."""

    text: str
    is_quoted: bool = True
    begins_word: bool = False
    """A further element of an array."""


@dataclass(slots=True)
class Variables:
    """The values that variables and arrays have while a script is read, with holes for unknown parts."""

    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    """The arguments of the function that runs, or of the script; None: unknown."""

    def copy(self) -> Variables:
        return Variables(dict(self.values), dict(self.arrays), self.arguments)

    def get(self, name: str) -> str:
        if name.isdigit() and self.arguments is not None and int(name[:3]) > 0:
            index = int(name[:3]) - 1
            return self.arguments[index] if index < len(self.arguments) else ""
        value = self.values.get(name)
        return hole(name) if value is None else value

    def take(self, after: Variables, local: set[str]) -> None:
        """Take on what a function has assigned, but for its local variables."""
        self.values |= {name: value for name, value in after.values.items() if name not in local}
        self.arrays |= {name: value for name, value in after.arrays.items() if name not in local}

    def merge(self, branches: Sequence[Variables]) -> None:
        """Take on what holds after any one of several branches: a hole where they differ; unset ones do not count."""
        for name in {name for branch in branches for name in branch.values}:
            found = {branch.values[name] for branch in branches if name in branch.values}
            self.values[name] = found.pop() if len(found) == 1 else hole()
        for name in {name for branch in branches for name in branch.arrays}:
            lists = {branch.arrays[name] for branch in branches if name in branch.arrays}
            self.arrays[name] = lists.pop() if len(lists) == 1 else (hole(),)


class Expander:
    """Expands nodes of one text. `assign` is called for `${NAME:=VALUE}`, `visit` for the commands of `$(…)`."""

    def __init__(
        self, text: str, variables: Variables, assign: Callable[[str, str, Node], None], visit: Callable[[Node], None]
    ) -> None:
        self._text = text
        self.variables = variables
        self._assign, self._visit = assign, visit

    def value(self, nodes: Sequence[Node]) -> str:
        """The value that these adjacent nodes assign: it is not split."""
        return _limited("".join(part.text for node in nodes for part in self.parts(node)))

    def words(self, nodes: Sequence[Node]) -> list[str]:
        """The words that these adjacent nodes become: none, one or several."""
        words: list[str] = []
        is_open = False
        for part in (part for node in nodes for part in self.parts(node)):
            pieces = [part.text] if part.is_quoted else part.text.split()
            is_open = is_open and not part.begins_word and (part.is_quoted or not part.text[:1].isspace())
            if is_open and pieces:
                words[-1] = _limited(words[-1] + pieces.pop(0))
            words += map(_limited, pieces)
            is_open = (is_open or bool(pieces)) and (part.is_quoted or not part.text[-1:].isspace())
        return words

    def parts(self, node: Node, depth: int = 0) -> Iterator[Part]:
        if depth > MAX_NESTING:
            yield Part(hole())
            return
        if node.type in _UNKNOWN or node.is_error or node.is_missing:
            yield Part(hole())
        elif node.type in _SUBSTITUTIONS:
            for child in node.named_children:
                self._visit(child)
            yield Part(hole(), is_quoted=False)
        elif node.type in _SPANS:
            yield from self._span(node.children, node.start_byte, node.end_byte, depth)
        elif node.type == "string":
            yield from self._string(node, depth)
        elif node.type == "simple_expansion":
            yield from self._variable(self._source(node).lstrip().removeprefix("$"))
        elif node.type == "expansion":
            yield from self._expansion(node, depth)
        else:
            yield Part(self._literal(node))

    def _literal(self, node: Node) -> str:
        if node.type == "raw_string":
            return self._source(node)[1:-1]
        if node.type == "ansi_c_string":
            return _ANSI.sub(_ansi, self._source(node)[2:-1])
        return _ESCAPED.sub(_unescape, self._source(node))

    def _source(self, node: Node) -> str:
        return syntax.source(node, self._text)

    def _span(self, nodes: Sequence[Node], start: int, end: int, depth: int) -> Iterator[Part]:
        """Expand nodes and the text between them, outside of quotes."""
        for node in nodes:
            begin = syntax.begin(node, self._text)
            if begin > start:
                yield Part(_ESCAPED.sub(_unescape, self._text[start:begin]))
            yield from self.parts(node, depth + 1)
            start = max(start, node.end_byte)
        if end > start:
            yield Part(_ESCAPED.sub(_unescape, self._text[start:end]))

    def _string(self, node: Node, depth: int) -> Iterator[Part]:
        start = self._text.find('"', node.start_byte) + 1
        end = node.end_byte - (node.children[-1].type == '"' and not node.children[-1].is_missing)
        inner = [child for child in node.children if child.type not in ("string_content", '"')]
        if len(inner) != 1 or end - start != inner[0].end_byte - inner[0].start_byte:
            yield Part("")  # "${NAME[@]}" alone is no word if the array is empty
        for child in inner:
            begin = syntax.begin(child, self._text)
            if begin > start:
                yield Part(_ESCAPED_IN_QUOTES.sub(_unescape, self._text[start:begin]))
            for part in self.parts(child, depth + 1):
                yield Part(part.text, begins_word=part.begins_word)
            start = max(start, child.end_byte)
        if end > start:
            yield Part(_ESCAPED_IN_QUOTES.sub(_unescape, self._text[start:end]))

    def _variable(self, name: str) -> Iterator[Part]:
        if name in "@*" and self.variables.arguments is not None:
            yield from (Part(text, begins_word=index > 0) for index, text in enumerate(self.variables.arguments))
        elif name in self.variables.arrays:
            elements = self.variables.arrays[name]
            yield Part(elements[0] if elements else "", is_quoted=False)
        else:
            yield Part(self.variables.get(name), is_quoted=False)

    def _expansion(self, node: Node, depth: int) -> Iterator[Part]:
        """The value of `${NAME}`, `${NAME:-default}`, `${NAME:=default}` or `${NAME[@]}`; other forms are unknown."""
        inner = [child for child in node.children if child.type not in ("${", "}") and not child.is_missing]
        if not inner:
            yield Part(hole())
        elif inner[0].type == "subscript":
            yield from self._element(inner)
        elif inner[0].type not in ("variable_name", "special_variable_name"):
            yield Part(hole())
        elif len(inner) == 1:
            yield from self._variable(self._source(inner[0]))
        elif _DEFAULT.fullmatch(operator := self._source(inner[1]).strip()):
            yield from self._default(node, inner, operator, depth)
        else:
            yield Part(hole())

    def _default(self, node: Node, inner: Sequence[Node], operator: str, depth: int) -> Iterator[Part]:
        name = self._source(inner[0])
        value = self.variables.get(name)
        if name in self.variables.arrays or (value != hole(name) and (value or operator[0] != ":")):
            yield from self._variable(name)
            return
        end = node.end_byte - 1
        parts = list(self._span(inner[2:], inner[1].end_byte, end, depth + 1))
        if operator.endswith("="):
            self._assign(name, _limited("".join(part.text for part in parts)), node)
        yield from (Part(part.text, is_quoted=False, begins_word=part.begins_word) for part in parts)

    def _element(self, inner: Sequence[Node]) -> Iterator[Part]:
        """The value of `${NAME[0]}` or `${NAME[@]}`."""
        name, _, index = self._source(inner[0]).rstrip("]").partition("[")
        elements = self.variables.arrays.get(name)
        if elements is None or len(inner) > 1:
            yield Part(hole())
        elif index in ("@", "*"):
            yield from (Part(text, begins_word=number > 0) for number, text in enumerate(elements))
        elif index.isdigit() and int(index[:6]) < len(elements):
            yield Part(elements[int(index[:6])], is_quoted=False)
        else:
            yield Part(hole())


def _limited(text: str) -> str:
    return text if len(text) <= MAX_VALUE else hole()


def _unescape(found: re.Match[str]) -> str:
    return "" if found[1] == "\n" else found[1]


def _ansi(found: re.Match[str]) -> str:
    if found[1] or found[3]:
        character = chr(int(found[1] or found[3], 16))
    elif found[2]:
        character = chr(int(found[2], 8))
    else:
        character = _ANSI_LETTERS.get(found[4], found[4] if found[4] in "\\'\"?" else found[0])
    return "" if character == HOLE else character
