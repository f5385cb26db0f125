"""Findings on a shell script as a whole: the lines that could not be read, and ranks in the background whose end nobody sees."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from orchestrator.environment.lint.assignment import Script, Word
from orchestrator.environment.lint.judge import LintFinding
from orchestrator.environment.table import VARIABLES
from orchestrator.findings import Finding, Severity

_EXPORT = re.compile(r"^[ \t]*export[ \t]+([A-Za-z_]\w*)=", re.MULTILINE)
_MOST_NAMED = 3
_TRAINING = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate)|.*\.py")
_WAIT = "wait without arguments ends with 0 whatever the processes in the background end with, so a rank that fails is not noticed"


def lint_script(script: Script, text: str, file: str) -> Iterator[LintFinding]:
    """Yield at most one finding of each kind."""
    if script.stopped_at is not None:
        problem = (
            "a quote, bracket or here-document that begins here does not end, so the lines from here on were not read"
        )
        yield _finding(
            Severity.WARN,
            "script",
            problem,
            remedy=f"bash -n {shlex.quote(file)}",
            file=file,
            line=script.stopped_at,
        )
    yield from _unread(script, text, file)
    waits = [words for words in script.commands if [word.value for word in words] == ["wait"]]
    background = [script.commands[index] for index in sorted(script.background)]
    started = next(filter(_is_training, background), None)
    if started is not None and waits:
        remedy = "let torchrun or orch start the ranks; or wait for each: pids+=($!) … for p in ${pids[@]}; do wait $p || exit; done"
        yield _finding(Severity.WARN, "wait", _WAIT, remedy=remedy, file=file, line=waits[-1][0].line)


def _is_training(command: Sequence[Word]) -> bool:
    return any(word.value is not None and _TRAINING.fullmatch(word.value) for word in command)


def _unread(script: Script, text: str, file: str) -> Iterator[LintFinding]:
    """Yield a finding on lines of quoted texts and here-documents that would set known variables in another shell."""
    read = {(found.name, found.line) for found in script.assignments}
    unread: dict[str, int] = {}
    for match in _EXPORT.finditer(text):
        line = text.count("\n", 0, match.start(1)) + 1
        if match[1] in VARIABLES and (match[1], line) not in read and line < (script.stopped_at or line + 1):
            unread.setdefault(match[1], line)
    if unread:
        names = ", ".join(f"{name} (line {line})" for name, line in list(unread.items())[:_MOST_NAMED])
        more = f" and {len(unread) - _MOST_NAMED} more" if len(unread) > _MOST_NAMED else ""
        problem = f"{names}{more}: set within a quoted text or here-document, which was not read"
        remedy = "give orch lint these lines as a file of their own"
        yield _finding(Severity.INFO, "script", problem, remedy=remedy, file=file, line=next(iter(unread.values())))


def _finding(severity: Severity, check: str, text: str, *, remedy: str, file: str, line: int) -> LintFinding:
    return LintFinding(Finding(severity, check, text, remedy=remedy), file, line)
