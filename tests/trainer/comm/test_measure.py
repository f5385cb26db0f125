"""How operations are timed: on NCCL without waiting in torch's wait(), which looks every 1 or 10 ms."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from trainer.comm.config import ALL_REDUCE, load_config
from trainer.comm.measure import MOST_IN_BATCH, Measured, Member, Meter
from trainer.runtime.accelerators import Cpu


@dataclass
class _Work:
    """An operation on a device, with the wait() of TORCH_NCCL_BLOCKING_WAIT, which must not be reached early."""

    done_s: float
    limit_s: float

    def is_completed(self) -> bool:
        return time.perf_counter() >= self.done_s

    def wait(self) -> None:
        if time.perf_counter() >= self.limit_s:
            raise RuntimeError("Watchdog caught collective operation timeout")
        assert self.is_completed(), "wait() would sleep"


@dataclass
class _Nccl:
    """The functions of torch.distributed; an operation takes `seconds`, and is a timeout after 20 ms."""

    seconds: float
    calls: int = 0

    def all_reduce(self, tensor: torch.Tensor, *, async_op: bool = False) -> _Work:
        del tensor
        self.calls += 1
        now_s = time.perf_counter()
        work = _Work(now_s + self.seconds, now_s + 0.02 if self.seconds == math.inf else math.inf)
        if not async_op:
            work.wait()
        return work


def _measure(nccl: _Nccl) -> Measured:
    config = load_config(["sizes=1K", "repetitions=2", "seconds=100", "timeout=0.02"])
    accelerator = Cpu(torch).changed(backend="nccl", distributed=nccl)
    meter = Meter(config, accelerator, torch.device("cpu"))
    [measured] = meter.measure(ALL_REDUCE, Member(0, 1, lambda _, value: value))
    return measured


def test_nccl_is_not_timed_in_steps_of_torchs_wait() -> None:
    nccl = _Nccl(1e-4)
    measured = _measure(nccl)
    assert measured.error == ""
    assert len(measured.times_s) == 2
    assert nccl.calls == 2 + 2 * MOST_IN_BATCH


def test_nccl_operation_that_does_not_end_is_an_error() -> None:
    measured = _measure(_Nccl(math.inf))
    assert measured == Measured(1024, error="RuntimeError: Watchdog caught collective operation timeout")
