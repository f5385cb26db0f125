"""Measure one operation at all sizes in one process group: check of the result, warm-up, repetitions."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, List, Sequence, Tuple

import torch

from trainer.comm.config import DTYPE_BYTES, CommConfig
from trainer.comm.operations import Case, Operation, count_of, type_of
from trainer.comm.results import UNSUPPORTED
from trainer.runtime.accelerators import Accelerator

BATCH_BYTES = 1 << 20
MOST_IN_BATCH = 20


@dataclass(frozen=True)
class Measured:
    """The times of one size on one rank, in seconds per operation; `error` says why there are none, or that the result is wrong."""

    size_bytes: int
    times_s: List[float] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class Member:
    """This rank's number in a group of `size` ranks, and how the group agrees: agree(name, value) returns member 0's value."""

    number: int
    size: int
    agree: Callable[[str, int], int]


class Meter:
    """Measures operations on the device of this rank."""

    def __init__(self, config: CommConfig, accelerator: Accelerator, device: torch.device) -> None:
        self.config, self.accelerator, self.device = config, accelerator, device
        self._is_nccl = accelerator.backend == "nccl"

    def measure(self, op: str, member: Member) -> list[Measured]:
        """
        Return the times of each size; the last one has an error if the operation failed, and the sizes after it are left out.

        Every member must call it. An operation that takes longer than the group's time limit fails.
        """
        config = self.config
        made: List[Measured] = []
        element_bytes = DTYPE_BYTES[config.dtype]
        for index, size_bytes in enumerate(config.sizes_bytes):
            count = count_of(op, size_bytes, element_bytes, member.size)
            case = Case(op, type_of(config.dtype), count, member.number, member.size, self.device)
            whole_bytes = case.elements * element_bytes
            try:
                times_s, wrong = self._times(Operation(case, self.accelerator), whole_bytes, member, str(index))
            except AttributeError as exc:  # T20 lacks some functions
                made.append(Measured(whole_bytes, error=f"{UNSUPPORTED}: {exc}"))
                return made
            except (RuntimeError, ValueError, MemoryError) as exc:
                made.append(Measured(whole_bytes, error=f"{type(exc).__name__}: {exc}".splitlines()[0]))
                return made
            made.append(Measured(whole_bytes, times_s, wrong))
        return made

    def _times(self, operation: Operation, size_bytes: int, member: Member, name: str) -> Tuple[List[float], str]:
        """The times of the repetitions, and what was wrong with the result of the first call."""
        operation.fill()
        self._seconds(operation, 1)
        wrong = operation.wrong()
        warm_up_s = self._seconds(operation, 1)
        largest_batch = max(1, min(MOST_IN_BATCH, BATCH_BYTES // size_bytes))
        count = member.agree(name, max(1, int(self.config.seconds / max(warm_up_s, 1e-9))))
        repetitions = min(count, self.config.repetitions)
        batch = min(count // repetitions, largest_batch)
        return [self._seconds(operation, batch) for _ in range(repetitions)], wrong

    def _seconds(self, operation: Operation, batch: int) -> float:
        """Time of one of `batch` operations, one after the other."""
        at_once = batch if self._is_nccl else 1
        self.accelerator.synchronize()
        begun_s = time.perf_counter()
        for _ in range(batch // at_once):
            self._wait([work for _ in range(at_once) for work in operation.call()])
        self.accelerator.synchronize()
        return (time.perf_counter() - begun_s) / batch

    def _wait(self, works: Sequence[Any]) -> None:
        """Wait for all; on NCCL first without wait(), which looks only every 1 or 10 ms with TORCH_NCCL_BLOCKING_WAIT."""
        if self._is_nccl:
            end_s = time.perf_counter() + self.config.timeout
            while not works[-1].is_completed() and time.perf_counter() < end_s:
                pass
        for work in works:
            work.wait()
