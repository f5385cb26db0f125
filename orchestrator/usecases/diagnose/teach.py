"""Make a signature of the user from a line of a log: the parts that differ each time become `*`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.evidence import LogSearch, origin_of
from orchestrator.diagnosis.signature import Role
from orchestrator.diagnosis.user_signatures import (
    LEAST_TEXT,
    MOST_TEXT,
    MOST_WILDCARDS,
    SignatureError,
    read_signatures,
)
from orchestrator.errors import UsageError
from orchestrator.records.files import write_file
from orchestrator.records.home import home
from orchestrator.usecases.diagnose.log_files import USER_SIGNATURES, diagnose_files, is_run, log_lines, user_signatures
from orchestrator.usecases.diagnose.run import diagnose_run

_POSITION = re.compile(r"(?P<file>.+):(?P<line>[1-9][0-9]{0,11})")
# Parts of a line that differ from one failure to the next.
_VARYING = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}"  # UUID
    r"|(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{1,4}"  # IPv6, MAC
    r"|(?<![\w.])[\w-]+(?:\.[\w-]+)+:\d+"  # host.domain:port
    r"|(?<![\w/])~?/[^\s'\",;:)\]]+"  # path
    r"|\b[\w-]*\d[\w.,:-]*\d\b|\d+"  # numbers, times, addresses, names with digits such as node17
)
_WORD = re.compile(r"[a-z0-9]+")
_NAME_WORDS = 5
_SPECIFIC = (Role.VERDICT, Role.ROOT)


@dataclass(frozen=True, slots=True)
class Lesson:
    """The user's own knowledge of a line: its cause in one sentence, the next steps, and an id, by default from the cause."""

    cause: str
    remedies: Sequence[str]
    name: str | None = None

    @property
    def id(self) -> str:
        return self.name or "-".join(_WORD.findall(self.cause.lower())[:_NAME_WORDS])

    def entry(self, text: str, line: str) -> str:
        """The section of a file of signatures; `line` is the sample."""
        remedies = (("remedy", remedy) for remedy in self.remedies)
        values = [("text", text), ("cause", self.cause), *remedies, ("sample", line)]
        return f"[{self.id}]\n" + "".join(f"{key}: {' '.join(value.split())}\n" for key, value in values)


@dataclass(frozen=True, slots=True)
class Taught:
    """The signature that was added, as text, its id, and the file."""

    entry: str
    name: str
    file: Path


def teach(word: str, lesson: Lesson, signatures_file: Path | None) -> Taught:
    """
    Add a signature for a line to the user's signatures, and return it.

    Args:
        word: `FILE:LINE`, or a run or log without a known cause, whose first error line is taken.

    Raises:
        UsageError: the line cannot be had or has no fixed text, a signature knows it, or other lines of the log match it too.
    """
    known = user_signatures(signatures_file)
    lines, line = _line_of(word, signatures_file)
    for hit in LogSearch(CATALOGUE).evidence([line.encode()], "line").hits:
        if hit.signature.role in _SPECIFIC and not hit.signature.is_general:
            hint = "orch diagnose names its cause; give another line"
            raise UsageError(f"the line is known: [{hit.signature.id}]", hint=hint)
    text = generalised(line)
    if max(map(len, text.split("*"))) < LEAST_TEXT:
        raise UsageError(f"the line has no text that stays the same: {line[:200]!r}", hint="give a line that says more")
    entry = lesson.entry(text, line)
    file = home(os.environ) / USER_SIGNATURES if signatures_file is None else signatures_file
    before = file.read_text("utf-8") if file.exists() else ""
    try:
        row = read_signatures(entry, str(file), {**CATALOGUE, **known})[lesson.id]
    except SignatureError as exc:
        hint = "give another --name, --cause or line; docs/diagnose.md shows the format"
        raise UsageError(str(exc), hint=hint) from exc
    for number, candidate in enumerate(lines, 1):
        if row.expression.search(candidate) and generalised(origin_of(candidate).text) != text:
            hint = f"write a signature with a longer text into {file}, or give a line that says more"
            raise UsageError(f"`{text}` is also found in line {number}: {candidate.strip()[:200]}", hint=hint)
    write_file(file, f"{before.rstrip()}\n\n{entry}" if before.strip() else entry)
    return Taught(entry, lesson.id, file)


def generalised(line: str) -> str:
    """The line with `*` for numbers, addresses, paths and names with digits: the longest part with as many `*` as a signature may have."""
    pieces = _VARYING.sub("*", " ".join(line.split())).split("*")
    windows = [pieces[start : start + MOST_WILDCARDS + 1] for start in range(max(1, len(pieces) - MOST_WILDCARDS))]
    text = "*".join(max(windows, key=lambda window: sum(map(len, window))))
    return re.sub(r"\*(?:[\s.,:/-]?\*)+", "*", text[:MOST_TEXT]).strip("* ")


def _line_of(word: str, signatures_file: Path | None) -> tuple[list[str], str]:
    """The lines of the log, and the one that is meant, without the prefixes of launchers; of a run only that line."""
    position = _POSITION.fullmatch(word)
    if position is not None and not Path(word).exists():
        lines = log_lines(position["file"])
        number = int(position["line"])
        if number > len(lines):
            text = f"{position['file']} has {len(lines)} lines, not {number}"
            raise UsageError(text, hint="give FILE:LINE of that log")
        return lines, origin_of(lines[number - 1]).text.strip()
    found = diagnose_run(word, signatures_file) if is_run([word]) else diagnose_files([word], signatures_file)
    if found.diagnosis.cause and found.diagnosis.signature in CATALOGUE and not found.diagnosis.errors:
        hint = "name the line that shows your cause: FILE:LINE"
        raise UsageError(f"{word}: the cause is known: {found.diagnosis.cause}", hint=hint)
    hits = [*found.diagnosis.errors, *found.diagnosis.proof]
    if not hits:
        raise UsageError(f"{word}: no line reports an error", hint="name the line: FILE:LINE")
    return ([] if is_run([word]) else log_lines(hits[0].file)), hits[0].origin.text.strip()
