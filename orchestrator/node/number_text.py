"""Lists of numbers as the kernel writes CPU lists: `0-3,8`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional, Set

MOST_DIGITS = 6


def parse_numbers(text: str) -> Optional[Set[int]]:
    """The numbers of a list; None if it is not one. An empty list is the empty set."""
    numbers: Set[int] = set()
    for part in filter(None, text.strip().split(",")):
        ends = part.split("-", 1)
        if not all(end.isdecimal() and end.isascii() and len(end) <= MOST_DIGITS for end in ends):
            return None
        first, last = int(ends[0]), int(ends[-1])
        if last < first:
            return None
        numbers.update(range(first, last + 1))
    return numbers


def format_numbers(numbers: Iterable[int]) -> str:
    """The shortest list of the numbers."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
