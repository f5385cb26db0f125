"""The samples of a split on all ranks: opened together, and compared."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Tuple

from trainer.console import log_line
from trainer.data.samples import DataTask, Samples
from trainer.errors import UserError
from trainer.runtime.group import Group
from trainer.text import fold


def open_split(task: DataTask, split: str, group: Group) -> Tuple[Any, str, str]:
    """
    The samples (None if the task has none for evaluation), their digest, and their description for the log.

    Raises:
        UserError: on all ranks, before any waits for a batch; some rank cannot open them.
    """
    samples, problem = None, ""
    try:
        samples = task.build_data(split)
        problem = _data_problem(samples, split, task.config.task)
    except (UserError, OSError) as exc:
        problem = str(exc)
    group.raise_if_any(problem)
    if samples is None:
        return None, "", ""
    name = f"{split} data"
    digest = _digest(samples)
    _compare(digest, name, group)
    size = getattr(samples, "description", "") or f"{len(samples)} samples"
    return samples, digest, f"{size} sha256 {digest[:12]}"


def _data_problem(samples: Samples | None, split: str, task: str) -> str:
    if samples is None:
        return f"task={task}: build_data({split!r}) gave None" if split == "train" else ""
    return "" if len(samples) else f"task={task}: build_data({split!r}) gave no samples"


def _digest(samples: Samples) -> str:
    digest_method = getattr(samples, "digest", None)
    text = digest_method() if callable(digest_method) else f"{type(samples).__name__} {len(samples)}"
    return hashlib.sha256(text.encode()).hexdigest()


def _compare(digest: str, name: str, group: Group) -> None:
    """Warn if the ranks have different data."""
    found: Dict[str, List[int]] = {}
    for rank, encoded in enumerate(group.gather_bytes(digest.encode())):
        found.setdefault(encoded.decode(), []).append(rank)
    if len(found) > 1 and group.rank.is_main:
        groups = "; ".join(f"{digest_found[:12]} on rank {fold(ranks)}" for digest_found, ranks in found.items())
        log_line(f"WARNING: the {name} are not the same on all ranks ({groups}); losses will not repeat on other nodes")
