"""
Batches of one rank, by position: the number of samples before a step and the rank determine its batch.

In each step, every rank takes the next `micro_batch` samples in the order of the epochs. Random numbers that a data set
draws for a batch are derived from the seed and the position of the batch, whichever process makes it.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any, Dict, Iterator, Sequence, Tuple

import torch
from torch.utils.data import DataLoader

from trainer.config.config import TrainConfig
from trainer.data.order import Order
from trainer.data.samples import DataTask, Samples
from trainer.errors import UserError
from trainer.runtime.group import Group
from trainer.runtime.seeds import derive_seed, seeded_rng
from trainer.values import Batch

VALIDATION = "validation"


@dataclass(frozen=True)
class _Problem:
    """Carries a UserError from a worker; an exception would carry a traceback."""

    message: str


class Source:
    """The data set for DataLoader: an index is the position of a batch's first sample."""

    def __init__(self, samples: Samples, task: DataTask, config: TrainConfig, split: str) -> None:
        self.samples, self.collate, self.count = samples, task.collate, config.micro_batch
        self.seed, self.split = config.seed, split
        mixed = getattr(samples, "order", None)
        self.order = mixed(config.seed, split) if mixed else Order(len(samples), config.seed, split)
        self.is_random = getattr(samples, "is_random", True)

    def __getitem__(self, first: int) -> Batch:
        chosen = [self.order.sample(position) for position in self._positions(first)]
        with seeded_rng(derive_seed(self.seed, self.split, first)) if self.is_random else contextlib.nullcontext():
            try:
                return self.collate([self.samples[index] for index in chosen])
            except UserError as exc:
                return _Problem(str(exc))

    def _positions(self, first: int) -> range:
        """Training continues with the next epoch; the last batch of validation may be smaller, but is never empty."""
        if self.split != VALIDATION:
            return range(first, first + self.count)
        return range(first, first + self.count_at(first)) if self.count_at(first) else range(1)

    def count_at(self, first: int) -> int:
        """The number of validation samples in the batch at `first`; 0 beyond the last one."""
        return max(0, min(self.count, len(self.samples) - first))


class Batches:
    """The batches of one split, on the rank's device."""

    def __init__(self, samples: Samples, task: DataTask, config: TrainConfig, group: Group, *, split: str) -> None:
        self.source, self.config, self.device = Source(samples, task, config, split), config, group.device
        self.first = group.rank.global_rank * config.micro_batch
        self.stride = group.rank.world_size * config.micro_batch
        self.pinned = config.data.pin_memory and group.device.type == "cuda"
        self.worker_start = group.accelerator.worker_start if config.data.workers else None
        if self.worker_start == "spawn":
            group.raise_if_any(_pickling_problem(self.source))
        self._iterator: Iterator[Any] = iter(())
        self._copies = group.accelerator.copy_stream()
        self._ahead: Any = None
        self.waited_s = 0.0
        """The time spent in next() so far."""

    def peek(self) -> Batch:
        """Return the first batch, without advancing the order."""
        return self.at(self.first)

    def at(self, first: int) -> Batch:
        """Return the batch whose first sample has this position, of any rank. Raises UserError for an invalid sample."""
        return self._receive(self.source[first])

    def begin(self, position: int) -> None:
        """Continue after this number of samples of all ranks, without end."""
        self._iterator = iter(self._loader(range(position + self.first, sys.maxsize, self.stride)))
        self._ahead = None

    def next(self) -> Batch:
        """The next batch. Raises UserError for an invalid sample."""
        requested = time.perf_counter()
        batch, self._ahead = self._ahead, None
        if batch is None or isinstance(batch, _Problem):
            batch = self._receive(next(self._iterator) if batch is None else batch)
        else:
            self._copies.wait(tensors_in(batch))
        self.waited_s += time.perf_counter() - requested
        return batch

    def prepare(self) -> None:
        """Start to copy the next batch to a card, while it computes; call it once the work on the batch before is queued."""
        if self._copies is None or self._ahead is not None:
            return
        requested = time.perf_counter()
        batch = next(self._iterator)
        with self._copies.block():
            self._ahead = batch if isinstance(batch, _Problem) else self._receive(batch)
        self.waited_s += time.perf_counter() - requested

    def first_batches(self, limit: int) -> Iterator[Tuple[Any, int]]:
        """
        The first batches of the order with their numbers of samples, equally many on every rank, at most `limit`.

        Each sample comes once. A rank for which none is left gets a batch with the number 0, since the ranks compute together.
        """
        count = min(limit, -(-len(self.source.samples) // self.stride))
        firsts = range(self.first, self.first + count * self.stride, self.stride)
        for first, batch in zip(firsts, self._loader(firsts)):
            yield self._receive(batch), self.source.count_at(first)

    def close(self) -> None:
        """End the workers."""
        self._iterator = iter(())

    def _loader(self, firsts: Sequence[int]) -> DataLoader[Any]:
        data, workers = self.config.data, self.config.data.workers
        more: Dict[str, Any] = {"prefetch_factor": data.prefetch} if workers else {}
        generator = torch.Generator()  # otherwise it would draw from the generator whose state is in checkpoints
        source: Any = self.source
        if self.worker_start == "spawn":
            more["multiprocessing_context"] = "spawn"
            # Before Python 3.13 this start unblocks SIGTERM (trainer/runtime/preemption.py).
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return DataLoader(
            source,
            batch_size=None,
            sampler=firsts,
            num_workers=workers,
            pin_memory=self.pinned,
            generator=generator,
            **more,
        )

    def _receive(self, batch: Batch) -> Batch:
        if isinstance(batch, _Problem):
            raise UserError(batch.message)
        return to_device(batch, self.device, non_blocking=self.pinned)


def to_device(batch: Batch, device: torch.device, *, non_blocking: bool) -> Batch:
    move = functools.partial(to_device, device=device, non_blocking=non_blocking)
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {key: move(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(move, batch))
    return type(batch)(map(move, batch)) if isinstance(batch, (list, tuple)) else batch


def tensors_in(batch: Batch) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (dict, list, tuple)):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from tensors_in(part)


def _pickling_problem(source: Source) -> str:
    """Return why samples and task cannot be pickled for a spawned worker, or ""."""
    try:
        ForkingPickler.dumps(source)
    except (PicklingError, AttributeError, TypeError) as exc:  # the errors that pickle raises
        return (
            f"data.workers: with this device they are new processes, to which samples and task cannot be sent ({exc}): "
            "keep lambdas, open files and the like out of both, or set data.workers=0"
        )
    return ""
