"""Numbers in texts: rounded in messages, durations, in CPU lists as the kernel writes them (`0-3,8`), and in Slurm's lists of nodes."""

from __future__ import annotations

import itertools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional, Set

MOST_DIGITS = 6  # of a number in a CPU list


def three_digits(value: float) -> str:
    """The number with at least its three first digits, and without an exponent if it is large: 0.25, 12.5, 3350."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004  from here on, all digits are before the point


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


def node_names(nodelist: str) -> list[str]:
    """
    The names in SLURM_JOB_NODELIST or SLURM_STEP_NODELIST, such as `n[00-02,7],r[0-1]n[1-2]`, in its order.

    Not by `scontrol show hostnames`: a compute node may have no scontrol.
    """
    import re  # slow to import, and only a Slurm job needs it

    names: list[str] = []
    for piece in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", nodelist):
        texts = re.split(r"\[([^\]]*)\]", piece)  # text, bracket, text, bracket, ..., text
        choices = [[number for span in spans.split(",") for number in numbers(span)] for spans in texts[1::2]]
        for chosen in itertools.product(*choices):
            names += [texts[0] + "".join(number + text for number, text in zip(chosen, texts[2::2]))]
    return names


def numbers(span: str) -> list[str]:
    """The numbers of `7` or `08-11`, with their zero padding."""
    first, _, last = span.partition("-")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]


def clock(span_s: float) -> str:
    """Format a time span for a person, in its two largest units: 45s, 3m12s, 2h05m, 3d04h."""
    minutes, seconds_ = divmod(max(0, int(span_s)), 60)
    hours, minutes_ = divmod(minutes, 60)
    days, hours_ = divmod(hours, 24)
    if days:
        return f"{days}d{hours_:02}h"
    if hours:
        return f"{hours}h{minutes_:02}m"
    return f"{minutes}m{seconds_:02}s" if minutes else f"{seconds_}s"


def counted(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
