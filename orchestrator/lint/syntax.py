"""
Trees of shell scripts, by tree-sitter and its grammar of bash, which are imported at the first script.

Offsets are those of the characters of the text: the parser gets one byte for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_DOCUMENTS = 500  # the time for here-documents that do not end is quadratic in their number
REDIRECTS = frozenset(("file_redirect", "heredoc_redirect", "herestring_redirect"))
_EXPANSIONS = frozenset(("expansion", "simple_expansion", "command_substitution", "arithmetic_expansion"))
_OPENINGS = frozenset(("${", "$(", '"', "'", "`", "(", "((", "{", "[["))
_CLOSINGS = frozenset(("'", '"', "`", ")", "))", "}", "]", "]]", "heredoc_end", "fi", "done", "esac"))
_STATEMENTS = frozenset(
    "command declaration_command unset_command variable_assignment variable_assignments function_definition if_statement case_statement "
    "for_statement while_statement c_style_for_statement redirected_statement compound_statement subshell list pipeline "
    "negated_command test_command comment ; & &&".split()
)
_NO_BYTE = re.compile(r"[^\x01-\x7f]")
_ARITHMETIC = re.compile(r"\(\([^\n]*?\)\)")
_BASE = re.compile(r"\b\d+#(?=\$)")
_READ_WRITE = re.compile(r"(?<=[\d}\s])<>(?=[\s\w\"'$./])")
_FI_ALONE = re.compile(r"(?<=\bfi)[ \t](?=(?:[ \t]|\\\n)*(?:else|elif|fi|done|esac)\b)")


@lru_cache(maxsize=1)
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: str) -> Node:
    """Parse a script. No text is an error: what is no shell becomes nodes of errors."""
    plain = _known_forms(_NO_BYTE.sub(".", text))  # `.` is a character of words, and of no name
    return _parser().parse(plain.encode() + b"\n").root_node


def _known_forms(text: str) -> str:
    """Replace forms that the grammar does not know by others of the same length: `10#$N` in arithmetic, `<>`, and `fi else` without `;`."""
    text = _ARITHMETIC.sub(lambda found: _BASE.sub(lambda base: " " * len(base[0]), found[0]), text)
    return _FI_ALONE.sub(";", _READ_WRITE.sub("< ", text))


def is_too_long(text: str) -> bool:
    return text.count("<<") > MAX_DOCUMENTS


def source(node: Node, text: str) -> str:
    return text[node.start_byte : node.end_byte]


def begin(node: Node, text: str) -> int:
    """The offset of a node without the blanks before it, which the tree counts to an expansion."""
    start = node.start_byte
    if node.type in _EXPANSIONS:
        while start < node.end_byte and text[start] in " \t\n":
            start += 1
    return start


def errors(root: Node, text: str) -> Iterator[tuple[int, bool]]:
    """Offsets of what is no shell, in order; True for a quote, bracket or statement that is open at the end of the text."""
    pending = [root]
    end = len(text.rstrip())
    while pending:
        node = pending.pop()
        if node.is_error and node.end_byte > node.start_byte:
            yield _opening(node, text), node.end_byte >= end
        elif missing := [child for child in node.children if _is_missing_end(child, text)]:
            yield begin(node, text), missing[0].end_byte >= end
        elif node.is_missing and node.type not in _CLOSINGS:
            yield node.start_byte, False
        elif node.has_error:
            pending += reversed(node.children)


def _is_missing_end(node: Node, text: str) -> bool:
    """True for an end that is not in the text; the grammar does not know all forms of `${…}`."""
    if not node.is_missing or node.type not in _CLOSINGS:
        return False
    return node.type != "}" or "}" not in text[node.end_byte :].partition("\n")[0]


def _opening(error: Node, text: str) -> int:
    """The offset of what is open in a text that is no shell, or of the first part that is no statement."""
    for node in error.children:
        if node.is_error and node.children:
            return _opening(node, text)
        if node.type in _OPENINGS or node.is_error:
            return node.start_byte
    first = next((node.start_byte for node in error.children if node.type not in _STATEMENTS), error.start_byte)
    return first + len(text[first : error.end_byte]) - len(text[first : error.end_byte].lstrip())


def commands(children: Sequence[Node], text: str) -> Iterator[list[Node]]:
    """The commands that the grammar takes for one: it continues after `NAME=` at the end of a line."""
    group: list[Node] = []
    for child in children:
        between = text[group[-1].end_byte : child.start_byte] if group else ""
        if "\n" in between.replace("\\\n", "").replace("\\\r\n", ""):
            yield group
            group = []
        group.append(child)
    if group:
        yield group


def words(children: Iterable[Node], text: str) -> Iterator[list[Node]]:
    """Group the nodes that form one word, as nothing is between them but a continued line."""
    group: list[Node] = []
    for child in children:
        is_redirect = bool(group) and (child.type in REDIRECTS or group[-1].type in REDIRECTS)
        if group and (is_redirect or text[group[-1].end_byte : child.start_byte] not in ("", "\\\n")):
            yield group
            group = []
        group.append(child)
    if group:
        yield group


def clauses(node: Node) -> list[list[Node]]:
    """The conditions and bodies of an `if`, one list per branch; an empty one if there is no `else`."""
    first = [child for child in node.children if child.type not in ("elif_clause", "else_clause")]
    more = [list(child.children) for child in node.children if child.type in ("elif_clause", "else_clause")]
    has_else = any(child.type == "else_clause" for child in node.children)
    return [first, *more] if has_else else [first, *more, []]


def assigned(nodes: Iterable[Node], text: str) -> set[str]:
    """The names of variables that are assigned somewhere within these nodes."""
    found = (node.child_by_field_name("name") for node in _descendants(nodes) if node.type == "variable_assignment")
    return {source(name, text) for name in found if name is not None}


def local_names(body: Node, text: str) -> set[str]:
    """The names of variables that a function declares as its local ones."""
    declarations = (node for node in _descendants([body]) if node.type == "declaration_command")
    return assigned((node for node in declarations if source(node, text).startswith(("local", "declare"))), text)


def _descendants(nodes: Iterable[Node]) -> Iterator[Node]:
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        pending += node.children
