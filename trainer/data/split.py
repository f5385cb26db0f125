"""The samples of a split on all ranks: opened together, and compared."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Sequence, Tuple

from torch.utils.data import IterableDataset

from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.data.batches import VALIDATION
from trainer.data.samples import DataTask, Samples
from trainer.errors import UserError
from trainer.runtime.group import Group
from trainer.text import fold

UNKNOWN = "without a digest(), so known by class and number alone: a resumed training does not notice other samples"


def open_split(task: DataTask, split: str, group: Group) -> Tuple[Any, str, str]:
    """
    The samples (None if the task has none for evaluation), their digest, and their description for the log.
    Raises UserError: on all ranks, before any waits for a batch; some rank cannot open them, or has another number for validation.
    """
    samples, digest, problem = None, "", ""
    try:
        samples = task.build_data(split)
        problem = _data_problem(samples, split, task.config)
        if samples is not None and not problem:
            known = getattr(samples, "digest", None)
            text = known() if callable(known) else f"{type(samples).__name__} {len(samples)}"
            digest = hashlib.sha256(text.encode()).hexdigest()
    except (UserError, OSError) as exc:
        problem = str(exc)
    group.raise_if_any(problem)
    everyone = group.gather([0 if samples is None else len(samples), digest[:12]])
    sizes, digests = ([found[index] for found in everyone] for index in (0, 1))
    if split == VALIDATION and len(set(sizes)) > 1:  # they would not evaluate equally many batches
        raise UserError.agreed(
            f"the numbers of {split} samples differ: {_by_value(sizes)}: let all nodes have the same files"
        )
    if len(set(digests)) > 1 and group.rank.is_main:
        log_line(
            f"WARNING: the {split} data are not the same on all ranks ({_by_value(digests)}); losses will not repeat on other nodes"
        )
    if samples is None:
        return None, "", ""
    size = getattr(samples, "description", "") or f"{len(samples)} samples"
    has_digest = callable(getattr(samples, "digest", None))
    return samples, digest, f"{size} {f'sha256 {digest[:12]}' if has_digest else UNKNOWN}"


def _data_problem(samples: Samples | None, split: str, config: TrainConfig) -> str:
    task = config.task
    if samples is None:
        return f"task={task}: build_data({split!r}) gave None" if split == "train" else ""
    start = f"task={task}: build_data({split!r}) gave"
    absent = [name for name in ("__len__", "__getitem__") if not hasattr(samples, name)]
    if absent or isinstance(samples, IterableDataset):
        return (
            f"{start} {type(samples).__name__}, which is only iterated over{f' (no {absent[0]})' if absent else ''}: samples are "
            "assigned to ranks, and found again by a resumed training, by their index: give a data set with __len__ and __getitem__"
        )
    if split == "train" and config.data.weights and not hasattr(samples, "order"):
        return f"data.weights: task={task} does not mix its data by them: leave them out"
    return "" if len(samples) else f"{start} no samples"


def _by_value(values: Sequence[object]) -> str:
    ranks: Dict[object, List[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on rank {fold(having)}" for value, having in ranks.items())
