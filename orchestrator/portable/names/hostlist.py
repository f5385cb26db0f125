"""
Host lists: expand `n[00-15],x` to names and fold names, in the notation of Slurm and ClusterShell.

Only text, also that on ranks and counts; nothing here knows about the nodes of an inventory.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from orchestrator.node.number_text import format_numbers

T = TypeVar("T", bound=Hashable)
# Larger than any known cluster, small enough that `n[0-999999999]` is refused at once instead of filling memory.
MAX_NAMES = 16_384
MOST_SHOWN = 60  # characters of a pattern; leaves space on the line for the message

_LAST_NUMBER = re.compile(r"(.*?)(\d{1,18})(\D*)")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?")


def expand(pattern: str) -> list[str]:
    """
    Return every name of a host list in the written order, including repeated names.

    ClusterShell sorts a whole list, so the names `n[3,1]` would not pair with the addresses `10.0.0.[7,5]`. Here it parses one
    range at a time, which also excludes its node groups (`@all` may run commands).

    Raises:
        ValueError: the pattern is not valid, or stands for more than MAX_NAMES names.
    """
    if "[" not in pattern and "]" not in pattern and "," not in pattern:
        return [_check_characters(pattern, pattern)]
    names: list[str] = []
    for piece in _split_outside_brackets(pattern):
        texts = _BRACKETS.split(_check_characters(piece, pattern))  # text, bracket, text, bracket, ..., text
        brackets = [bracket.split(",") for bracket in texts[1::2]]
        count = math.prod(sum(_range_size(item, pattern) for item in items) for items in brackets)
        if count > MAX_NAMES:
            raise _too_many(pattern)
        choices = [[number for item in items for number in _numbers(item, pattern)] for items in brackets]
        names.extend(
            texts[0] + "".join(number + text for number, text in zip(numbers, texts[2::2]))  # noqa: B905  nodes may have Python 3.8
            for numbers in itertools.product(*choices)  # the last bracket varies fastest
        )
        if len(names) > MAX_NAMES:
            raise _too_many(pattern)
    return names


def fold(names: Iterable[str]) -> str:
    """Return names as one short host list: sorted, without duplicates; empty for no names."""
    unique = list(dict.fromkeys(names))
    if len(unique) <= 1:  # nothing to fold: ClusterShell need not be imported
        return "".join(unique)
    if any(not re.fullmatch(r"[A-Za-z0-9._:-]+", name) for name in unique):
        return ",".join(unique)  # characters that ClusterShell reads as operators or wildcards

    try:
        from ClusterShell.NodeSet import (  # type: ignore[import-untyped]  # imported only if needed
            RESOLVER_NOGROUP,
            NodeSet,
        )
    except ImportError:  # on a node, where the checks of a Slurm job run
        return fold_last_number(unique)
    return str(NodeSet.fromlist(unique, resolver=RESOLVER_NOGROUP))


def fold_by_value(values: Iterable[tuple[str, T]]) -> dict[T, str]:
    """Each value of the pairs of a name and its value, with its names as a host list."""
    names: dict[T, list[str]] = {}
    for name, value in values:
        names.setdefault(value, []).append(name)
    return {value: fold(of_value) for value, of_value in names.items()}


def fold_last_number(names: Iterable[str]) -> str:
    """Fold as `fold` does, but without ClusterShell, and only the last number of each name."""
    matches = {name: _LAST_NUMBER.fullmatch(name) for name in names}
    found = {name: match.groups() for name, match in matches.items() if match}
    padded = {(before, after, len(digits)) for before, digits, after in found.values() if re.match("0.", digits)}
    numbers: dict[tuple[str, str, int], list[int]] = {}
    for before, digits, after in found.values():
        width = len(digits) if (before, after, len(digits)) in padded else 0
        numbers.setdefault((before, after, width), []).append(int(digits))
    pieces = [
        f"{before}{_ranges(sorted(values), width)}{after}" for (before, after, width), values in sorted(numbers.items())
    ]
    return ",".join([*pieces, *(name for name, match in matches.items() if not match)])


def _ranges(numbers: Sequence[int], width: int) -> str:
    """`7`, or `[0-3,7]`; numbers are padded with zeros to a width."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = ("-".join(f"{number:0{width}d}" for number in dict.fromkeys((run[0], run[-1]))) for run in runs)
    text = ",".join(texts)
    return text if len(numbers) == 1 else f"[{text}]"


def ranks_on_nodes(ranks: Sequence[int], nodes: Sequence[str]) -> str:
    """`rank 3 on n1`; empty without either."""
    text = f"{'rank' if len(ranks) == 1 else 'ranks'} {format_numbers(ranks)}" if ranks else ""
    return " on ".join(filter(None, (text, fold(nodes))))


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, each once, in order."""
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


def _range_size(item: str, pattern: str) -> int:
    """Count the numbers of `7`, `0-15` or `0-15/2` without creating them."""
    match = _RANGE.fullmatch(item)
    if not match or int(match[3] or 1) == 0:
        raise _refusal(pattern, f"[{item}] is not a range; allowed: [7], [0-15], [0-15/2], [0,4-7]")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise _refusal(pattern, f"the range {item} runs backwards")
    return (last - first) // int(match[3] or 1) + 1


def _numbers(item: str, pattern: str) -> list[str]:
    """Return the numbers of one range as text, with their zero padding."""
    from ClusterShell.RangeSet import (  # type: ignore[import-untyped]  # imported only if needed
        RangeSet,
        RangeSetParseError,
    )

    try:
        return [str(number) for number in RangeSet(item)]
    except RangeSetParseError as error:
        raise _refusal(pattern, str(error)) from error


def _check_characters(piece: str, pattern: str) -> str:
    """Return the piece; ValueError if it is empty or holds a character that no host name or address has."""
    if not piece:
        raise _refusal(pattern, "a name is empty")
    if not re.fullmatch(r"[A-Za-z0-9._:%,/\[\]-]+", piece):
        raise _refusal(pattern, "allowed: letters, digits, . _ : % - and ranges in []")
    return piece


def _too_many(pattern: str) -> ValueError:
    return ValueError(f"{_displayed(pattern)} stands for more than {MAX_NAMES} names")


def _refusal(pattern: str, reason: str) -> ValueError:
    return ValueError(f"{_displayed(pattern)} is not a host list; {reason}")


def _displayed(pattern: str) -> str:
    short = pattern if len(pattern) <= MOST_SHOWN else pattern[: MOST_SHOWN - 3] + "..."
    return short if re.fullmatch(r"[!-~]+", short) else ascii(short)
