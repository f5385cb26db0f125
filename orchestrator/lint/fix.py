"""Apply the replacements of findings to the text of a file. Nothing is written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from orchestrator.lint.assignment import split_assignment
from orchestrator.lint.judge import LintFinding

_EMPTY = re.compile(r"[ \t]*(?:export|declare|typeset|readonly|local|env)?(?:[ \t]+-\w+)*[ \t]*\\?")


def fixed_text(text: str, findings: Iterable[LintFinding], *, quoted: bool) -> str:
    """Return the text with every finding replaced that has a replacement; a removed line becomes a comment with the reason."""
    positions = [found for found in findings if found.replacement is not None and found.start is not None]
    for found in sorted(positions, key=lambda found: found.start or 0, reverse=True):
        start, end = found.start or 0, found.end or 0
        if found.replacement:
            new = _quoted(found.replacement) if quoted else found.replacement
            text = text[:start] + new + text[end:]
        else:
            text = _without(text, start, end, found.finding.text)
    return text


def _quoted(replacement: str) -> str:
    """
    Quote the value for a shell; the corrected text of a fault of the line, such as `export NAME=VALUE`, is one already.

    zsh replaces a word after an unquoted `=` at the beginning of a value, as in NCCL_IB_HCA==mlx5_0, by the path of that program.
    """
    name, value = split_assignment(replacement)
    if not name:
        return replacement
    return f"{name}='{value}'" if value.startswith("=") and "'" not in value else f"{name}={shlex.quote(value)}"


def _without(text: str, start: int, end: int, reason: str) -> str:
    """Remove the range; if nothing else is on its line, the reason replaces it as a comment."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    before, after = text[line_start:start], text[end:line_end]
    if not _EMPTY.fullmatch(before) or not re.fullmatch(r"\s*(#.*)?", after):
        kept = after.lstrip(" \t") if before.endswith((" ", "\t")) or not before else after
        return text[:line_start] + before + kept + text[line_end:]
    is_continued = text[:line_start].endswith("\\\n")
    comment = "" if is_continued else f"# {' '.join(reason.split())}"
    return text[:line_start] + comment + text[line_end:]
