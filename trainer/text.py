"""Rank numbers and sizes in messages. No torch here."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence


def fold(ranks: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"; `ranks` ascending."""
    spans: List[List[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def by_rank(problems: Mapping[int, str]) -> str:
    """One line per distinct problem, with the ranks that have it."""
    ranks: Dict[str, List[int]] = {}
    for rank, text in problems.items():
        ranks.setdefault(text, []).append(rank)
    return "\n".join(f"rank {fold(some)}: {text}" for text, some in ranks.items())


def gigabytes(size: float) -> str:
    """12.34 GB; below 0.1 GB with two digits that are not 0, such as 0.0012 GB."""
    return f"{size / 1e9:.2{'f' if size >= 1e8 else 'g'}} GB"  # noqa: PLR2004 -- as the docstring says


def hours(seconds: float) -> str:
    """4000.4 -> "1:06:40"."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
