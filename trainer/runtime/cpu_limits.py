"""How often the cgroups of this process reach their limit of CPU time: the process then waits for a CPU although some are idle."""

from __future__ import annotations

import os
from typing import Dict, Optional, Tuple

CGROUPS = "/sys/fs/cgroup"
Counts = Dict[str, Tuple[int, int]]


def limit_periods(cgroups: str = "/proc/self/cgroup", root: str = CGROUPS) -> Counts:
    """By the folder of a cgroup that has a limit: the periods since its start, and those in which the limit was reached."""
    try:
        with open(cgroups, encoding="utf-8", errors="surrogateescape") as file:
            paths = dict(line.rstrip("\n").split(":", 2)[1:] for line in file)
    except (OSError, ValueError):
        return {}
    version_1 = next((path for names, path in paths.items() if "cpu" in names.split(",")), None)
    path = paths.get("", "/") if version_1 is None else f"/cpu{version_1}"
    counts: Counts = {}
    while path != "/":  # a limit of a cgroup is one of those below it, too
        _add(counts, root + path)
        path = os.path.dirname(path)
    _add(counts, root)  # in a container, its own cgroup may be the root
    return counts


def limited_share(before: Counts, now: Counts) -> Optional[float]:
    """The share of the periods between two counts in which a limit was reached, the largest of all limits; None without a limit."""
    shares = [
        (reached - before[folder][1]) / (periods - before[folder][0])
        for folder, (periods, reached) in now.items()
        if folder in before and periods > before[folder][0]
    ]
    return round(max(shares), 3) if shares else None


def _add(counts: Counts, folder: str) -> None:
    try:
        with open(os.path.join(folder, "cpu.stat"), encoding="ascii") as file:
            values = dict(line.split() for line in file)
        counts[folder] = int(values["nr_periods"]), int(values["nr_throttled"])
    except (OSError, ValueError, KeyError):
        return  # this cgroup has no limit, or belongs to another controller
