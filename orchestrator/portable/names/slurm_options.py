"""The options of sbatch in the `slurm:` section, as fields or in its `options`, and Slurm's time format."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_SAME = "partition account qos time reservation constraint gres mem exclusive exclude dependency mail_type mail_user comment"
OPTION_OF: Mapping[str, str] = MappingProxyType(
    {**{name: name.replace("_", "-") for name in _SAME.split()}, "cpus": "cpus-per-task"}
)
"""Field -> sbatch option, in the order in which the batch script writes them."""
DEFAULT_WARN_S = 90


def option_name(option: str) -> str:
    """Return the name in an option such as --name=value, without the dashes."""
    return re.split(r"[=\s]", option.removeprefix("--"), maxsplit=1)[0]


def has_count(gres: str) -> bool:
    """Return whether a generic resource is given with its count, as in gpu:8."""
    return re.search(r":[0-9]+[KMGTP]?$", gres) is not None


def requests_gpus(slurm: Mapping[str, Any]) -> bool:  # Any: JSON
    """Return whether a job requests devices that Slurm calls gpu."""
    gres = option_value(slurm, "gres") or ""
    is_option = any(option_name(option).startswith("gpus") for option in slurm["options"])
    return is_option or any(name.partition(":")[0] == "gpu" for name in gres.split(","))


def requests_cards(slurm: Mapping[str, Any]) -> bool:  # Any: JSON
    """Return whether a job requests devices of any kind."""
    return requests_gpus(slurm) or bool(option_value(slurm, "gres"))


def memory_mb(memory: str) -> float:
    """Return an amount of memory for --mem in megabytes; 0 if it is none."""
    found = re.fullmatch(r"([0-9]+)([KMGT]?)", memory.upper())
    return int(found[1]) * 1024.0 ** ("KMGT".index(found[2] or "M") - 1) if found else 0


def time_limit_s(time: str) -> float:
    """Return a Slurm time in seconds; infinite for UNLIMITED, 0 if it is not a time."""
    if time.upper() in {"UNLIMITED", "INFINITE"}:
        return math.inf
    found = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?", time)
    if found is None:
        return 0
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:  # minutes, or minutes and seconds
        return first * 60 + second
    return days * 86_400 + first * 3600 + second * 60 + third


def warn_s(slurm: Mapping[str, Any]) -> int:  # Any: JSON
    """Return how long before its time limit Slurm is to signal a job: the field, or else the default for `time`."""
    return int(slurm["warn_s"] or default_warn_s(time_limit_s(option_value(slurm, "time") or "") or math.inf))


def default_warn_s(limit_s: float) -> int:
    """Return DEFAULT_WARN_S, or a quarter of a short limit in seconds, because a job would otherwise be signalled as it starts."""
    return int(max(1, min(DEFAULT_WARN_S, limit_s // 4)))


def option_value(slurm: Mapping[str, Any], field: str) -> str | None:  # Any: JSON
    """Return the value of a field, or of the option in `options` that sets it; empty for an option without a value, None if unset."""
    if slurm[field] is not None:
        return str(slurm[field])
    found = next((option for option in slurm["options"] if option_name(option) == OPTION_OF[field]), None)
    return None if found is None else found.partition("=")[2]
