"""The results of a benchmark as a PNG: bandwidth by size, or a heat map of the pairs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestrator.errors import UsageError

Figure = Any  # of matplotlib, which is optional
Result = Mapping[str, Any]
MOST_LABELS = 32
INCHES_PER_RANK = 0.4


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Write a heat map of pairs, else a curve per operation; UsageError if matplotlib is broken, or the file cannot be written."""
    measured = [result for result in results["results"] if "busbw" in result]
    pairs = [result for result in measured if result["groups"] in ("pairs", "node-pairs")]
    try:
        figures = importlib.import_module("matplotlib.figure")  # not pyplot, which looks for a display
    except ImportError as exc:
        raise UsageError(f"--png: matplotlib is installed, but broken: {exc}", hint="reinstall it") from exc
    figure = _heat_map(figures, pairs, results["ranks"]) if pairs else _curves(figures, measured)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        figure.savefig(temporary, format="png", bbox_inches="tight")
        temporary.replace(path)
    except OSError as exc:
        raise UsageError(f"--png {path}: {exc.strerror}", hint="name a file in a folder that you can write") from exc


def matrix(pairs: Sequence[Result]) -> tuple[list[int], list[list[float]]]:
    """The ranks of the pairs, and the bandwidth between each two of them at the largest size; nan where none was measured."""
    ranks = sorted({rank for result in pairs for rank in result["ranks"]})
    index = {rank: number for number, rank in enumerate(ranks)}
    rows = [[float("nan")] * len(ranks) for _ in ranks]
    for result in pairs:  # by size, ascending
        first, second = (index[rank] for rank in result["ranks"])
        rows[first][second] = rows[second][first] = result["busbw"]
    return ranks, rows


def _heat_map(figures: ModuleType, pairs: Sequence[Result], positions: Sequence[Mapping[str, Any]]) -> Figure:
    ranks, rows = matrix(pairs)
    side = max(4.0, INCHES_PER_RANK * len(ranks))
    figure = figures.Figure(figsize=(side + 1.5, side))
    axes = figure.add_subplot()
    image = axes.imshow(rows, vmin=0)
    if len(ranks) <= MOST_LABELS:
        names = [f"{positions[rank]['node']}:{positions[rank]['local_rank']}" for rank in ranks]
        axes.set_xticks(range(len(ranks)), names, rotation=90)
        axes.set_yticks(range(len(ranks)), names)
    else:
        axes.set_xlabel("rank")
        axes.set_ylabel("rank")
    figure.colorbar(image, ax=axes, label="bus bandwidth (GB/s)")
    axes.set_title(f"{pairs[-1]['op']}, {pairs[-1]['bytes']} bytes, {pairs[-1]['dtype']}")
    return figure


def _curves(figures: ModuleType, measured: Sequence[Result]) -> Figure:
    figure = figures.Figure(figsize=(8, 4.5))
    axes = figure.add_subplot()
    curves: dict[tuple[str, tuple[int, ...]], list[Result]] = {}
    for result in measured:
        curves.setdefault((result["op"], tuple(result["ranks"])), []).append(result)
    has_groups = len({ranks for _, ranks in curves}) > 1
    for (op, ranks), results in curves.items():
        label = f"{op} {ranks[0]}-{ranks[-1]}" if has_groups else op
        sizes, bandwidths = [result["bytes"] for result in results], [result["busbw"] for result in results]
        axes.plot(sizes, bandwidths, marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("size (bytes)")
    axes.set_ylabel("bus bandwidth (GB/s)")
    axes.grid(alpha=0.3)
    if curves:
        axes.legend()
    return figure
