"""
Host lists: `n[00-15],x` to names and back, in the notation of Slurm and ClusterShell.

Only text; what a name stands for is the inventory's business.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

# Far above any cluster this is used on, low enough that `n[0-999999999]` is an answer and not a hang.
MAX_NAMES = 16_384

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?")


def expand(pattern: str) -> list[str]:
    """
    Give every name of a host list, in the order written and as often as written.

    ClusterShell sorts what it reads: `n[3,1]` beside `10.0.0.[7,5]` would pair 3 with 7 only by luck. So it reads one
    range at a time here, which also keeps its node groups (`@all`, which may run commands) out.

    Raises:
        ValueError: the pattern cannot be read, or stands for more than MAX_NAMES names.
    """
    if "[" not in pattern and "]" not in pattern and "," not in pattern:
        return [_checked(pattern, pattern)]
    names: list[str] = []
    for piece in _split_outside_brackets(pattern):
        names.extend(_expand_piece(_checked(piece, pattern), pattern))
        if len(names) > MAX_NAMES:
            raise _too_many(pattern)
    return names


def fold(names: Iterable[str]) -> str:
    """Write names as one short host list: sorted, each once; empty for no names."""
    unique = list(dict.fromkeys(names))
    if len(unique) < 2:  # noqa: PLR2004  nothing to fold, and ClusterShell need not be loaded
        return "".join(unique)
    if any(not re.fullmatch(r"[A-Za-z0-9._:-]+", name) for name in unique):
        return ",".join(unique)  # characters that ClusterShell reads as operators or wildcards

    from ClusterShell.NodeSet import (  # type: ignore[import-untyped]  # noqa: PLC0415  loaded only where it is needed
        RESOLVER_NOGROUP,
        NodeSet,
    )

    return str(NodeSet.fromlist(unique, resolver=RESOLVER_NOGROUP))


def repeated(names: Sequence[str]) -> list[str]:
    """Give the names that occur more than once, each once, in order."""
    return [name for name, count in Counter(names).items() if count > 1]


def _split_outside_brackets(pattern: str) -> list[str]:
    """Split at the commas that separate names, not at those inside brackets."""
    pieces, depth, start = [], 0, 0
    for position, character in enumerate(pattern):
        depth += (character == "[") - (character == "]")
        if depth not in {0, 1}:
            raise _refusal(pattern, "brackets do not match")
        if character == "," and depth == 0:
            pieces.append(pattern[start:position])
            start = position + 1
    if depth:
        raise _refusal(pattern, "a [ is not closed")
    return [*pieces, pattern[start:]]


def _expand_piece(piece: str, pattern: str) -> list[str]:
    """Give the names of one piece, the last bracket running fastest."""
    texts = _BRACKETS.split(piece)  # text, bracket, text, bracket, ..., text
    brackets = [bracket.split(",") for bracket in texts[1::2]]
    count = math.prod(sum(_range_size(item, pattern) for item in items) for items in brackets)
    if count > MAX_NAMES:
        raise _too_many(pattern)
    choices = [[number for item in items for number in _numbers(item, pattern)] for items in brackets]
    return [
        texts[0] + "".join(number + text for number, text in zip(numbers, texts[2::2], strict=True))
        for numbers in itertools.product(*choices)
    ]


def _range_size(item: str, pattern: str) -> int:
    """Count the numbers of `7`, `0-15` or `0-15/2` without making them."""
    match = _RANGE.fullmatch(item)
    if not match or int(match[3] or 1) == 0:
        raise _refusal(pattern, f"[{item}] is no range; allowed: [7], [0-15], [0-15/2], [0,4-7]")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise _refusal(pattern, f"the range {item} runs backwards")
    return (last - first) // int(match[3] or 1) + 1


def _numbers(item: str, pattern: str) -> list[str]:
    """Give the numbers of one range as text, zero padding kept."""
    from ClusterShell.RangeSet import (  # type: ignore[import-untyped]  # noqa: PLC0415  loaded only where it is needed
        RangeSet,
        RangeSetParseError,
    )

    try:
        return [str(number) for number in RangeSet(item)]
    except RangeSetParseError as error:
        raise _refusal(pattern, str(error)) from error


def _checked(piece: str, pattern: str) -> str:
    """Refuse an empty name and the characters that no host name or address has."""
    if not piece:
        raise _refusal(pattern, "a name is empty")
    if not re.fullmatch(r"[A-Za-z0-9._:%,/\[\]-]+", piece):
        raise _refusal(pattern, "allowed: letters, digits, . _ : % - and ranges in []")
    return piece


def _too_many(pattern: str) -> ValueError:
    return ValueError(f"{_shown(pattern)} stands for more than {MAX_NAMES} names")


def _refusal(pattern: str, why: str) -> ValueError:
    return ValueError(f"{_shown(pattern)} is no host list; {why}")


def _shown(pattern: str) -> str:
    short = pattern if len(pattern) <= 60 else pattern[:57] + "..."  # noqa: PLR2004  what fits in a line beside the rest
    return short if re.fullmatch(r"[!-~]+", short) else ascii(short)
