"""What the `slurm:` section of a plan comes to for sbatch: its fields and free options as one, and times as Slurm writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

OPTION_OF: Mapping[str, str] = MappingProxyType(
    {
        "partition": "partition",
        "account": "account",
        "qos": "qos",
        "time": "time",
        "reservation": "reservation",
        "constraint": "constraint",
        "gres": "gres",
        "mem": "mem",
        "exclusive": "exclusive",
        "exclude": "exclude",
        "dependency": "dependency",
        "mail_type": "mail-type",
        "mail_user": "mail-user",
        "comment": "comment",
        "cpus": "cpus-per-task",
    }
)
"""The fields that are options of sbatch, in the order in which it is told."""
WARN_S = 90


def option_name(option: str) -> str:
    """Give the name of an option such as --name=value, without the dashes."""
    return re.split(r"[=\s]", option.removeprefix("--"), maxsplit=1)[0]


def time_limit_s(time: str) -> float:
    """Read a time as Slurm writes it; 0 where it is none."""
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
    """Give how long before its end Slurm is to warn a job; of a short one a quarter, else it would have to end as it begins."""
    limit_s = time_limit_s(option_value(slurm, "time") or "") or math.inf
    return int(slurm["warn_s"] or max(1, min(WARN_S, limit_s // 4)))


def option_value(slurm: Mapping[str, Any], field: str) -> str | None:  # Any: JSON
    """Give what the field of a section says, or the option of its name among the free ones; empty for one without value."""
    if slurm[field] is not None:
        return str(slurm[field])
    given = [option for option in slurm["options"] if option_name(option) == OPTION_OF[field]]
    return given[0].partition("=")[2] if given else None
