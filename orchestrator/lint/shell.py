"""
Read a shell script without running it: its assignments, its command lines as words, and the scripts within it.

Statements are followed in the order in which they run: functions where they are called, both branches of an `if`, the body of a loop
once. A value that needs a command, arithmetic or a variable that the script does not set is unknown. No text is an error: lines
that are no shell are named, and the others are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.lint import syntax
from orchestrator.lint.assignment import Directive, Script, Unread, Word, hole, known, without_holes
from orchestrator.lint.embedded import (
    Document,
    kind_of_document,
    kind_of_target,
    lines_script,
    placed,
    texts_of_command,
)
from orchestrator.lint.expand import Expander, Variables
from orchestrator.lint.recorder import ASSIGNMENT, Recorder
from orchestrator.lint.sbatch import directive
from orchestrator.variables import VARIABLES

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 60  # of statements within statements
MAX_CALLS = 200  # of functions
MAX_EMBEDDED = 3  # scripts within scripts
_WRAPPERS = frozenset("time exec nohup sudo command builtin then do else".split())
_EXPORTERS = frozenset(("export", "env"))
_DECLARERS = frozenset(("declare", "typeset", "local", "readonly"))
_VARIABLE_OPTIONS = ("-e", "-x", "--env", "-env", "-genv")
_SLURM = frozenset(("srun", "sbatch", "salloc"))
_PRINTERS = frozenset(("echo", "printf"))
_SOURCES = frozenset(("source", "."))
SourcedText: TypeAlias = Callable[[str], "tuple[str, str] | None"]
"""Returns name and text of a file that a script sources, by the path that it writes; None: that file is not read."""
_SUBSHELLS = frozenset(("subshell", "pipeline", "command_substitution", "process_substitution"))
_SEQUENCES = _SUBSHELLS | frozenset(
    "program compound_statement list negated_command do_group else_clause ERROR variable_assignments".split()
)
_COMPOUNDS = frozenset("if_statement case_statement for_statement while_statement c_style_for_statement".split())


def nothing(_path: str) -> None:
    """Read no file that a script sources."""


def read_shell(
    text: str,
    file: str,
    *,
    first_line: int = 1,
    variables: Variables | None = None,
    depth: int = 0,
    sourced: SourcedText = nothing,
) -> Script:
    """
    Read a script.

    Args:
        first_line: where it begins in the file.
        depth: the number of scripts that it is within.
        sourced: reads the files that it sources.
    """
    if syntax.is_too_long(text):
        return Script((), unread=(Unread(first_line, is_rest=True),))
    recorder = Recorder(text, file, first_line)
    return _Reader(text, recorder, depth, sourced).read(variables or Variables())


class _Reader:
    """One walk over the tree of a script."""

    def __init__(self, text: str, recorder: Recorder, depth: int, sourced: SourcedText) -> None:
        self._text, self._file, self._depth, self._sourced_text = text, recorder.file, depth, sourced
        self._recorder = recorder
        self._commands: list[tuple[Word, ...]] = []
        self._background: list[int] = []
        self._unread: list[Unread] = []
        self._directives: list[Directive] = []
        self._embedded: list[Script] = []
        self._unset: list[Word] = []
        self._documents: set[int] = set()
        self._functions: dict[str, Node] = {}
        self._called: set[str] = set()
        self._calls, self._level = 0, 0
        self._sourced: list[Script] = []
        self._unread_files: list[Word] = []

    def read(self, variables: Variables) -> Script:
        """Read the whole text; the variables are changed as it changes them."""
        self._follow(variables)
        values = self._variables.values
        return replace(
            self._commands_alone(),
            assignments=self._recorder.assignments(),
            exported={name: values[name] for name in self._recorder.exported if name in values},
        )

    def _follow(self, variables: Variables) -> None:
        self._expander = Expander(self._text, variables, self._assign_default, self._visit)
        root = syntax.parse(self._text)
        lines: dict[int, bool] = {}
        for offset, is_rest in syntax.errors(root, self._text):
            lines[self._recorder.line(offset)] = is_rest
        for line in sorted(lines):
            self._unread.append(Unread(line, lines[line]))
            if lines[line]:
                break
        self._find_directives(root)
        self._visit(root)
        while uncalled := [name for name in self._functions if name not in self._called]:
            self._call(uncalled[0], None)

    def _commands_alone(self) -> Script:
        return Script(
            (),
            tuple(self._commands),
            frozenset(self._background),
            tuple(self._unread),
            tuple(self._directives),
            tuple(self._embedded),
            unset=tuple(self._unset),
            sourced=tuple(self._sourced),
            unread_files=tuple(self._unread_files),
            file=self._file,
        )

    @property
    def _variables(self) -> Variables:
        return self._expander.variables

    @_variables.setter
    def _variables(self, variables: Variables) -> None:
        self._expander.variables = variables

    def _source(self, node: Node) -> str:
        return syntax.source(node, self._text)

    def _line(self, node: Node) -> int:
        return self._recorder.line(syntax.begin(node, self._text))

    def _find_directives(self, root: Node) -> None:
        is_late = False
        for node in root.children:
            is_late = is_late or node.type != "comment"
            if node.type != "comment" or node.start_point[1]:
                continue
            for name, value in directive(self._source(node)):
                self._directives.append(Directive(name, value, self._line(node), is_late))
                if name == "export" and not is_late:
                    self._recorder.export_list(value, self._line(node), self._variables)

    # Statements

    def _visit(self, node: Node) -> None:
        if self._level >= MAX_DEPTH:
            self._unread.append(Unread(self._line(node)))
            return
        self._level += 1
        kind = node.type
        if kind == "command":
            for children in syntax.commands(node.children, self._text):
                self._command(children)
        elif kind == "declaration_command":
            self._command(node.children)
        elif kind == "variable_assignment":
            self._assign([node], is_exported=False)
        elif kind in _COMPOUNDS:
            self._compound(node)
        elif kind in _SEQUENCES:
            self._sequence(node)
        elif kind == "redirected_statement":
            self._redirected(node)
        else:
            self._define(node)
        self._level -= 1

    def _define(self, node: Node) -> None:
        """Take note of a function, or forget variables that are unset."""
        if node.type == "unset_command":
            for child in node.named_children:
                text = self._source(child)
                self._variables.values.pop(text, None)
                self._unset.append(Word(text, self._line(child), child.start_byte, child.end_byte, text))
        elif node.type == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None:
                self._functions[self._source(name)] = body

    def _sequence(self, node: Node) -> None:
        before = self._variables.copy() if node.type in _SUBSHELLS else None
        for child, following in zip(node.children, [*node.children[1:], None], strict=False):
            count = len(self._commands)
            self._visit(child)
            if following is not None and following.type == "&" and len(self._commands) > count:
                self._background.append(len(self._commands) - 1)
        if before is not None:
            self._variables = before

    def _compound(self, node: Node) -> None:
        if node.type == "if_statement":
            self._branches(node.start_byte, syntax.clauses(node))
        elif node.type == "case_statement":
            items = [list(child.children) for child in node.children if child.type == "case_item"]
            self._branches(node.start_byte, [[], *items])
        elif node.type == "for_statement":
            variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
            values = [word for child in node.children_by_field_name("value") for word in self._expander.words([child])]
            if variable is not None:
                self._variables.values[self._source(variable)] = values[0] if len(values) == 1 else hole()
            self._loop([] if body is None else [body])
        else:
            self._loop(node.children)

    def _branches(self, statement: int, branches: Sequence[Sequence[Node]]) -> None:
        before, around = self._variables, self._recorder.around
        results = []
        for number, nodes in enumerate(branches):
            self._variables = before.copy()
            self._recorder.around = (*around, (self._recorder.unique(statement), number))
            for child in nodes:
                self._visit(child)
            results.append(self._variables)
        before.merge(results)
        self._variables, self._recorder.around = before, around

    def _loop(self, nodes: Sequence[Node]) -> None:
        """Read the body once; a variable that it changes has no known value at its start."""
        for name in syntax.assigned(nodes, self._text):
            if name in self._variables.values:
                self._variables.values[name] = hole()
            self._variables.arrays.pop(name, None)
        for child in nodes:
            self._visit(child)

    def _call(self, name: str, arguments: tuple[str, ...] | None) -> None:
        self._called.add(name)
        self._calls += 1
        if self._calls > MAX_CALLS:
            return
        body, before = self._functions[name], self._variables
        self._variables = before.copy()
        self._variables.arguments = arguments
        self._visit(body)
        before.take(self._variables, syntax.local_names(body, self._text))
        self._variables = before

    # Commands

    def _command(self, children: Sequence[Node]) -> None:
        """Record the prefix assignments and the words of a simple command, and what it declares."""
        prefix: list[list[Node]] = []
        words: list[Word] = []
        for group in syntax.words(children, self._text):
            first, last = group[0], group[-1]
            if first.type == "variable_assignment" and not words:
                prefix.append(group)
            elif first.type not in syntax.REDIRECTS:
                is_pair = first.type == "variable_assignment"
                texts = [self._pair(group)] if is_pair else self._expander.words(group)
                start = syntax.begin(first, self._text)
                line = self._recorder.line(start)
                words += (Word(known(text), line, start, last.end_byte, text) for text in texts)
        while words and words[0].value in _WRAPPERS:
            words.pop(0)
        while words and self._recorder.is_pair(words[0]):  # sudo NAME=VALUE …
            self._recorder.assign(words.pop(0), self._variables, is_exported=True, is_of_command=True)
        for group in prefix:
            self._assign(group, is_exported=bool(words), is_of_command=bool(words))
        if words:
            self._commands.append(tuple(words))
            self._arguments(words)

    def _arguments(self, words: Sequence[Word]) -> None:
        """Follow a command: a function, a builtin that sets variables, or a program that passes variables or runs a script."""
        name = words[0].pattern.rpartition("/")[2]
        if name in _PRINTERS:
            return
        if name in self._functions and self._level < MAX_DEPTH // 2:
            self._call(name, tuple(word.pattern for word in words[1:]))
        values = [word.value or "" for word in words[1:]]
        is_all = any(re.fullmatch("-[a-z]*a[a-z]*", value) for value in values) or "allexport" in values
        self._recorder.exports_all |= name == "set" and is_all
        self._recorder.blanks(words, is_export=name in _EXPORTERS | _DECLARERS)
        self._declare(name, words[1:])
        if name in _SOURCES and len(words) > 1:
            self._source_file(words[1])
        if self._depth < MAX_EMBEDDED:
            for word in texts_of_command(words):
                self._embed_text(word, "shell")

    def _source_file(self, path: Word) -> None:
        """Follow a file that the script sources, in its place; its functions are read, but not called."""
        found = self._sourced_text(path.pattern) if self._depth < MAX_EMBEDDED else None
        if found is None or found[0] == self._file or syntax.is_too_long(found[1]):
            self._unread_files.append(path)
            return
        name, text = found
        with self._recorder.within(text, name):
            reader = _Reader(text, self._recorder, self._depth + 1, self._sourced_text)
            reader._follow(self._variables)
        self._variables = reader._variables
        self._sourced.append(reader._commands_alone())

    def _declare(self, command: str, arguments: Sequence[Word]) -> None:
        """Record assignments among the arguments, as of export, env, `mpirun -x` and `docker run -e`."""
        options = [word.value or "" for word in arguments if (word.value or "").startswith("-")]
        is_declarer = command in _DECLARERS
        exports = command in _EXPORTERS or (is_declarer and any("x" in option for option in options))
        if command == "export" and "-n" in options:
            return
        previous = ""
        for word in arguments:
            before, previous = previous, word.pattern
            if command in _SLURM and (before == "--export" or word.pattern.startswith("--export=")):
                self._recorder.export_list(word.pattern.removeprefix("--export="), word.line, self._variables)
                continue
            is_passed = exports or is_declarer or before in _VARIABLE_OPTIONS  # as in docker run -e "NAME=VALUE"
            is_pair = ASSIGNMENT.match(word.pattern) is not None and (is_passed or self._recorder.is_pair(word))
            if not is_pair:
                self._recorder.exported.update([word.value] if exports and word.value else [])
            elif exports or is_declarer or word.pattern.partition("=")[0] in VARIABLES:
                is_of_command = command != "export" and not is_declarer
                is_exported = exports or not is_declarer
                self._recorder.assign(word, self._variables, is_exported=is_exported, is_of_command=is_of_command)

    # Assignments

    def _assign(self, nodes: Sequence[Node], *, is_exported: bool, is_of_command: bool = False) -> None:
        """Record an assignment, whose value may continue in further nodes."""
        name, value = nodes[0].child_by_field_name("name"), nodes[0].child_by_field_name("value")
        pair = self._pair(nodes)
        is_array = value is not None and value.type == "array"
        if name is not None and name.type == "variable_name" and not is_array:
            word = Word(None, self._line(name), name.start_byte, nodes[-1].end_byte, pair)
            self._recorder.assign(word, self._variables, is_exported=is_exported, is_of_command=is_of_command)

    def _pair(self, nodes: Sequence[Node]) -> str:
        """The text `NAME=VALUE` of an assignment, or `NAME+=VALUE`; the elements of an array are stored."""
        node = nodes[0]
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or node.has_error:
            return hole() if name is None else f"{self._source(name)}={hole()}"
        operator = "+=" if any(child.type == "+=" for child in node.children) else "="
        if value is not None and value.type == "array":
            groups = syntax.words(value.children[1:-1], self._text)
            elements = tuple(
                word for group in groups if group[0].type != "comment" for word in self._expander.words(group)
            )
            before = self._variables.arrays.get(self._source(name), ()) if operator == "+=" else ()
            self._variables.arrays[self._source(name)] = (*before, *elements)
            return f"{self._source(name)}={hole()}"
        inner = [] if value is None else [child for child in node.children if child.start_byte >= value.start_byte]
        return f"{self._source(name)}{operator}{self._expander.value([*inner, *nodes[1:]])}"

    def _assign_default(self, name: str, value: str, node: Node) -> None:
        """Record `${NAME:=VALUE}`."""
        self._variables.values[name] = value
        self._recorder.assign_default(name, value, syntax.begin(node, self._text))

    # Scripts within the script

    def _redirected(self, node: Node) -> None:
        """Read a statement with redirections; a here-document is a script if a shell runs it or a file of that kind gets it."""
        count = len(self._commands)
        body = node.child_by_field_name("body")
        if body is not None:
            self._visit(body)
        redirects = node.children_by_field_name("redirect")
        inner = [child for found in redirects for child in found.children]
        for child in inner:
            if child.is_named and child.type not in syntax.REDIRECTS:
                self._visit(child)
        outputs = [
            target
            for found in (*redirects, *inner)
            if found.type == "file_redirect" and not self._source(found).lstrip("0123456789&").startswith("<")
            for target in found.children_by_field_name("destination")
        ]
        commands = self._commands[count:]
        names = [word for target in outputs for word in self._expander.words([target])]
        copies = [command for command in commands if command[0].pattern.rpartition("/")[2] == "tee"]
        names += (word.pattern for command in copies for word in command[1:])
        for found in redirects:
            if found.type == "heredoc_redirect":
                self._document(found, commands, names)
        kind = next(filter(None, map(kind_of_target, names)), None)
        if kind is not None and commands and commands[0][0].pattern in _PRINTERS:
            for word in commands[0][1:]:
                self._embed_text(word, kind)

    def _document(self, node: Node, commands: Sequence[Sequence[Word]], names: Sequence[str]) -> None:
        parts = {child.type: child for child in node.children}
        start, body, end = (parts.get(kind) for kind in ("heredoc_start", "heredoc_body", "heredoc_end"))
        if start is None or body is None or end is None or self._depth >= MAX_EMBEDDED:
            return
        begin = self._text.find("\n", start.end_byte) + 1
        if begin in self._documents:
            return
        self._documents.add(begin)
        text = self._text[begin : max(begin, body.end_byte)]
        document = Document(text, self._recorder.line(begin), begin, self._source(start)[:1] in "'\"\\")
        kind = kind_of_document(text, [[word.pattern for word in command] for command in commands], names)
        if kind is not None:
            self._embedded.append(self._nested(document, kind))

    def _embed_text(self, word: Word, kind: str) -> None:
        """Read a word that a shell runs, or that is written to a file, as a script."""
        if self._depth < MAX_EMBEDDED and word.pattern.strip():
            text = without_holes(word.pattern)
            script = self._nested(Document(text, word.line, None, is_literal=True), kind)
            directives = script.directives or tuple(replace(entry, is_inherited=True) for entry in self._directives)
            # what stands for the unknown parts may be no shell
            unread = script.unread if text == word.pattern else ()
            self._embedded.append(replace(script, unread=unread, directives=directives))

    def _nested(self, document: Document, kind: str) -> Script:
        if kind != "shell":
            return lines_script(document, kind, self._file)
        text, removed = document.plain()
        variables, depth = self._variables.copy(), self._depth + 1
        script = read_shell(text, self._file, first_line=document.line, variables=variables, depth=depth)
        return placed(script, document.start, removed)
