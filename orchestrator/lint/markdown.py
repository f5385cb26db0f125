"""The fenced blocks of a Markdown document, as texts with their language, line and offset."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

_FENCE = re.compile(r"^(?P<indent>[ \t]*(?:>[ \t]?)*)(?P<fence>`{3,}|~{3,})[ \t]*\{?\.?(?P<language>[\w+-]*)[^\n`]*$")
_PROMPT = re.compile(
    r"^[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:[\w.-]+@[\w.-]+[^$#\n]{0,40})?[$%][ \t]|^[ \t]*\[?[\w.@:/~{}-]+(?: [\w.~/-]+\])?#[ \t]"
)
_SHELLS = frozenset(("bash", "sh", "shell", "zsh", "sbatch", "slurm", "shellscript"))
_SESSIONS = frozenset(("console", "shell-session", "shellsession", "terminal", "sh-session", "bash-session", "session"))
_KINDS = {"dockerfile": "docker", "docker": "docker", "containerfile": "docker", "yaml": "yaml", "yml": "yaml"} | {
    "env": "env",
    "dotenv": "env",
    "properties": "env",
}
_PLACEHOLDER = re.compile(r"<(?!<)[^\W\d][^<>\n(){}$\"'`|;&]{0,60}>")
"""A placeholder that the reader of a document replaces, as in `--node-rank <rank>`: its value is unknown."""
_LIKE_SHELL = re.compile(
    r"^[ \t]*(?:[$%][ \t]+)?(?:export[ \t]+[A-Za-z_]\w*=|(?:[A-Z_][A-Z0-9_]*=\S*[ \t]+)*(?:torchrun|python3?|deepspeed|srun|sbatch|mpirun|accelerate|"
    r"docker)[ \t])",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """
    The text of a fenced block, without the fence's indentation.

    `kind` is "shell", "docker", "yaml" or "env"; `is_named`: by the document. `removed` are the offsets, from `start` on, of the characters that `text` lacks.
    """

    text: str
    kind: str
    line: int
    start: int
    is_named: bool = True
    removed: tuple[int, ...] = ()


def blocks(text: str) -> Iterator[Block]:
    """The blocks that can be linted: those of a language that is read, and those without one that look like shell."""
    lines = text.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    index = 0
    while index < len(lines):
        opening = _FENCE.match(lines[index].rstrip("\r\n"))
        index += 1
        if opening is None:
            continue
        first = index
        closing = re.compile(rf"[ \t>]*{re.escape(opening['fence'][0])}{{{len(opening['fence'])},}}[ \t]*$")
        while index < len(lines) and closing.match(lines[index].rstrip("\r\n")) is None:
            index += 1
        kind = _kind(opening["language"].lower(), "".join(lines[first:index]))
        if kind is not None:
            block = Block("".join(lines[first:index]), kind, first + 1, offsets[first], bool(opening["language"]))
            yield _plain(block, len(opening["indent"]))
        index += 1


def _kind(language: str, text: str) -> str | None:
    if language in _SHELLS:
        return "session" if all(map(_PROMPT.match, text.strip().splitlines()[:1])) and text.strip() else "shell"
    if language in _SESSIONS:
        return "session"
    if language:
        return _KINDS.get(language)
    if not _LIKE_SHELL.search(text):
        return None
    return "session" if any(map(_PROMPT.match, text.splitlines())) else "shell"


def _plain(block: Block, indent: int) -> Block:
    """Remove the indentation, and of a session the prompts and the output."""
    kept: list[str] = []
    removed: list[int] = []
    offset = 0
    is_continued = False
    for source in block.text.splitlines(keepends=True):
        width = min(indent, len(source) - len(source.lstrip(" \t>")))
        if block.kind == "session":
            prompt = _PROMPT.match(source)
            if prompt is not None:
                width = prompt.end()
            elif not is_continued:
                width = len(source.rstrip("\r\n"))
            is_continued = source.rstrip().endswith("\\") and (prompt is not None or is_continued)
        removed += range(offset, offset + width)
        kept.append(source[width:])
        offset += len(source)
    text = _PLACEHOLDER.sub(lambda found: "$".ljust(len(found[0]), "_"), "".join(kept))
    kind = "shell" if block.kind == "session" else block.kind
    return replace(block, text=text, kind=kind, removed=tuple(removed))
