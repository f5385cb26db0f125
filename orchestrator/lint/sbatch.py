"""Options of command lines, and those that Slurm reads from `#SBATCH` comments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

_DIRECTIVE = re.compile(r"#SBATCH[ \t]+(.*)")
_SHORT = 2  # characters of `-n`


def directive(comment: str) -> list[tuple[str, str]]:
    """The options of a comment; none if it is not for sbatch."""
    match = _DIRECTIVE.match(comment)
    if match is None:
        return []
    try:
        words = shlex.split(match[1], comments=True)
    except ValueError:
        words = match[1].split()
    return list(options(words))


def options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options with their values: `--name=value`, `--name value`, `-n value`, `-nvalue`; "" for none."""
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("-"):
            continue
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > _SHORT:
            name, equals, value = word[:_SHORT], "=", word[_SHORT:]
        if not equals and index < len(words) and not words[index].startswith("-"):
            value = words[index]
            index += 1
        yield name.lstrip("-"), value
