"""The node, rank and time of a log line, by the prefixes of launchers, torch and loggers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone

_HOST = r"[A-Za-z0-9](?:[\w.-]*[\w])?"
_TIME = r"(?P<time>\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?)(?:Z|[+-]\d\d:?\d\d)?"
# In any order, as often as they appear: a launcher labels a line that already has the prefix of torch.
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\[(?P<node>{_HOST}):(?P<rank>\d+|-)\] ",  # orch
        r"\[rank(?P<rank>\d+)\]:? ?",  # torch, from 2.2 on
        r"\[default(?P<local>\d+)\]: ?",  # torchrun --tee
        r" *(?P<rank>\d{1,6}): ",  # srun --label
        r"\[\d+,(?P<rank>\d+)\]<std(?:err|out|diag)>: ?",  # mpirun --tag-output
        rf"\[?{_TIME}\]?[ :|]+(?:- )?",
        r"\[?[A-Z]\d{3,4} \d\d:\d\d:\d\d\.\d+ *(?:\d+ )?[\w./]+:\d+\] ",  # glog, as in torch's C++
        rf"(?P<node>{_HOST}):\d+:\d+ (?:\[(?P<local>\d+)\] )?(?=\S+ ?\S* ?NCCL )",  # NCCL
        rf"slurmstepd-(?P<node>{_HOST}): (?=error: )",  # Slurm with several slurmd on a host
        rf"(?P<node>(?=[\w.-]*\d){_HOST}): (?=\S)",  # pdsh, DeepSpeed
    )
)
_NOT_HOST = re.compile(r"(?i)(?:.*(?:error|exception|warning)|.*\.py)$")
MOST_PREFIXES = 5


@dataclass(frozen=True, slots=True)
class Origin:
    """The node, rank and time that the prefixes of a line name, and the line without them."""

    text: str
    node: str | None = None
    rank: int | None = None
    time: float | None = None
    """Seconds since the epoch; a time without a zone counts as UTC, so that only times of one log can be compared."""
    is_local: bool = False
    """The rank is that within the node, which is the rank of the run on the first node alone."""


def origin_of(line: str) -> Origin:
    found = Origin(line)
    for _ in range(MOST_PREFIXES):
        match = next(filter(None, (pattern.match(found.text) for pattern in _PREFIXES)), None)
        values = {} if match is None else match.groupdict()
        if match is None or _NOT_HOST.match(values.get("node") or ""):
            break
        rank = values.get("rank") or values.get("local") or ""
        # torch's own rank is nearer to the text than the label of a launcher, a local rank is not
        is_better = rank.isdigit() and (found.rank is None or not values.get("local"))
        found = replace(
            found,
            text=found.text[match.end() :],
            node=found.node or values.get("node"),
            rank=int(rank) if is_better else found.rank,
            is_local=bool(values.get("local")) if is_better else found.is_local,
            time=found.time if found.time is not None else _seconds(values.get("time")),
        )
    return found


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text[:19].replace("_", " "))
    except ValueError:  # such as month 13
        return None
    fraction = float(f"0.{text[20:]}") if text[20:].isdigit() else 0.0
    return moment.replace(tzinfo=timezone.utc).timestamp() + fraction
