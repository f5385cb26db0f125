"""Read a Dockerfile: variables of ENV, shell in RUN, CMD and ENTRYPOINT."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.lint.assignment import Assignment, Script, Word, known
from orchestrator.lint.embedded import placed
from orchestrator.lint.expand import Variables
from orchestrator.lint.shell import read_shell
from orchestrator.variables import VARIABLES

_INSTRUCTION = re.compile(r"[ \t]*([A-Za-z]+)[ \t]+")
_OPTION = re.compile(r"--[a-z]+(?:=\S+)?(?:[ \t]|\\\r?\n)+")
_PAIR = re.compile(r"""[A-Za-z_]\w*=(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s\\"'])*""", re.DOTALL)
_DOCUMENT = re.compile(r"<<-?[ \t]*[\"']?(\w+)[\"']?")
_BLANK_AFTER = re.compile(r"\\([ \t]+)(?=\r?\n)")
_LOST = "is set for this RUN only: the container gets it from ENV"


@dataclass(frozen=True, slots=True)
class _Instruction:
    """An instruction with its arguments, which may continue on further lines; comment lines among them are blank."""

    name: str
    text: str
    start: int
    line: int


def read_dockerfile(text: str, file: str, *, first_line: int = 1) -> tuple[Script, ...]:
    """One script for all ENV, and one for each RUN, CMD and ENTRYPOINT."""
    assignments: list[Assignment] = []
    scripts: list[Script] = []
    variables = Variables()
    for found in _instructions(text, first_line):
        if found.name == "ENV":
            for pair in _pairs(found, file, variables):
                assignments.append(pair)
                variables.values[pair.name] = pair.pattern
        elif found.name in ("RUN", "CMD", "ENTRYPOINT", "SHELL"):
            script = _command(found, file, variables)
            scripts.append(_without_effect(script) if found.name == "RUN" else script)
    return (Script(tuple(assignments)), *scripts)


def _instructions(text: str, first_line: int) -> Iterator[_Instruction]:
    lines = text.splitlines(keepends=True)
    index = position = 0
    while index < len(lines):
        count = _length(lines, index)
        # comments within an instruction continue it: blank text of the same length
        parts = [
            _blank(line)
            if number and line.lstrip().startswith("#") and not _DOCUMENT.search("".join(lines[index : index + number]))
            else line
            for number, line in enumerate(lines[index : index + count])
        ]
        whole = _BLANK_AFTER.sub(r"\1\\", "".join(parts))  # Docker continues the line, a shell does not
        match = _INSTRUCTION.match(whole)
        if match is not None:
            rest = match.end()
            while option := _OPTION.match(whole, rest):
                rest = option.end()
            line = first_line + index + whole.count("\n", 0, rest)
            yield _Instruction(match[1].upper(), whole[rest:], position + rest, line)
        position += len(whole)
        index += count


def _length(lines: Sequence[str], start: int) -> int:
    """The number of lines of the instruction that begins here, with its continuations and here-documents."""
    index = start
    is_run = lines[start].lstrip()[:4].upper().startswith(("RUN", "COPY"))
    delimiters: list[str] = []
    while index < len(lines):
        line = lines[index]
        index += 1
        is_comment = line.lstrip().startswith("#")
        if is_run and not is_comment:
            delimiters += _DOCUMENT.findall(line)
        if not line.rstrip().endswith("\\") and not (is_comment and index - 1 > start):
            break
    for delimiter in delimiters:
        while index < len(lines) and lines[index].strip() != delimiter:
            index += 1
        index = min(index + 1, len(lines))
    return index - start


def _blank(line: str) -> str:
    return " " * max(len(line) - 2, 0) + "\\\n" if len(line) > 1 else line


def _pairs(found: _Instruction, file: str, variables: Variables) -> Iterator[Assignment]:
    pairs = list(_PAIR.finditer(found.text))
    if not pairs:  # ENV NAME VALUE
        name, _, value = found.text.strip().partition(" ")
        yield Assignment(name, value.strip(), file, found.line, pattern=value.strip())
        return
    for pair in pairs:
        line = found.line + found.text.count("\n", 0, pair.start())
        inner = read_shell(f"export {pair[0]}\n", file, first_line=line, variables=variables.copy())
        for entry in inner.assignments[:1]:
            start = found.start + pair.start()
            yield replace(entry, start=start, end=start + len(pair[0]))


def _command(found: _Instruction, file: str, variables: Variables) -> Script:
    """The script of an instruction: a list of words in JSON, a here-document, or a line of shell."""
    text = found.text.strip()
    if text.startswith("["):
        try:
            words = json.loads(text.replace("\\\n", ""))
        except ValueError:
            words = None
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            return Script((), (tuple(Word(known(word), found.line, 0, 0, word) for word in words),))
    document = _DOCUMENT.match(found.text)
    start = found.text.find("\n") + 1 if document is not None else 0
    line = found.line + found.text.count("\n", 0, start)
    body = found.text[start:]
    if document is not None:
        body = re.sub(rf"^{re.escape(document[1])}[ \t]*$", "", body, flags=re.MULTILINE)
    script = read_shell(body, file, first_line=line, variables=variables.copy())
    return placed(script, found.start + start)


def _without_effect(script: Script) -> Script:
    """Add a fault to known variables that a RUN exports."""

    def judged(entry: Assignment) -> Assignment:
        row = VARIABLES.get(entry.name)
        is_lost = row is not None and row.library != "launchers" and entry.is_exported and not entry.is_of_command
        return replace(entry, fault=_LOST) if is_lost and not entry.fault else entry

    return replace(script, assignments=tuple(map(judged, script.assignments)))
