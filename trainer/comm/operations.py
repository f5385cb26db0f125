"""
The operations of the benchmark on one process group: buffers, the call, and the check of the result.

Sizes are those of nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): of the whole array, so that all-gather's
output and reduce-scatter's input have that size. Buffers hold at most twice the size and three tiles of TILE elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Sequence, Tuple

import torch

from trainer.comm.config import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, SEND_RECV
from trainer.runtime.accelerators import Accelerator

PERIOD = 251  # a prime, so that a block at a wrong place differs
TILE = PERIOD * 4096
BITS = 7
MOST_SUMMED = 256  # ranks whose values are not 0: bf16 holds integers up to 256 exactly


@dataclass(frozen=True)
class Case:
    """One operation on arrays of `count` elements per rank, in the group whose members are numbered 0 … size - 1."""

    op: str
    dtype: torch.dtype
    count: int
    number: int
    size: int
    device: torch.device

    @property
    def elements(self) -> int:
        """The elements of the whole array."""
        return self.count * (self.size if self.op in (ALL_GATHER, REDUCE_SCATTER) else 1)


def count_of(op: str, size_bytes: int, element_bytes: int, group_size: int) -> int:
    """The elements of each rank's part, at least one, for an array of about `size_bytes`."""
    parts = group_size if op in (ALL_GATHER, REDUCE_SCATTER) else 1
    return max(1, size_bytes // (element_bytes * parts))


class Operation:
    """The buffers of one case, and the function that communicates."""

    def __init__(self, case: Case, accelerator: Accelerator) -> None:
        self.case, self._dist = case, accelerator.distributed
        self._is_gloo = accelerator.backend == "gloo"
        # gloo would run several at the same time, and Enflame's library may not report the end of one
        self._options = {"async_op": True} if accelerator.backend == "nccl" else {}
        count = case.count
        self.given = self._empty(case.elements if case.op == REDUCE_SCATTER else count)
        reuses_input = case.op in (ALL_REDUCE, BROADCAST)
        self.result = self.given if reuses_input else self._empty(case.elements if case.op == ALL_GATHER else count)
        self._communicate: Callable[[], Sequence[Any]] = {
            ALL_REDUCE: lambda: [self._dist.all_reduce(self.result, **self._options)],
            ALL_GATHER: self._all_gather,
            REDUCE_SCATTER: self._reduce_scatter,
            BROADCAST: lambda: [self._dist.broadcast(self.result, 0, **self._options)],
            SEND_RECV: self._send_recv,
        }[case.op]

    def call(self) -> list[Any]:
        """Communicate; returns the works to wait for, which are none if torch's function has waited."""
        return [work for work in self._communicate() if work is not None]

    def fill(self) -> None:
        """Set this rank's values."""
        tile = self._tile([self.case.number])
        for start, part in _parts(self.given):
            part.copy_(tile[: part.numel()])
            assert start % PERIOD == 0
        if self.result is not self.given:
            self.result.zero_()

    def wrong(self) -> str:
        """Compare the result with the expected values; returns the first difference, or ""."""
        case = self.case
        everyone = range(case.size)
        if case.op == ALL_GATHER:
            parts = [(number * case.count, [number], 0) for number in everyone]
        else:
            givers = {SEND_RECV: [(case.number - 1) % case.size], BROADCAST: [0]}.get(case.op, list(everyone))
            parts = [(0, givers, case.number * case.count if case.op == REDUCE_SCATTER else 0)]
        for start, givers, offset in parts:
            difference = _difference(self.result[start : start + case.count], self._tile(givers), offset)
            if difference:
                return f"wrong result: element {start + difference[0]} is {difference[1]}, expected {difference[2]}"
        return ""

    def _empty(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=self.case.dtype, device=self.case.device)

    def _tile(self, givers: Sequence[int]) -> torch.Tensor:
        """The sum of the values of these members, as PERIOD elements repeated; a member's values are a bit of the position."""
        position = torch.arange(PERIOD)
        total = torch.zeros(PERIOD, dtype=torch.int64)
        for number in givers:
            if number < MOST_SUMMED:
                total += (position >> (number % BITS)) & 1
        return total.repeat(TILE // PERIOD).to(self.case.dtype).to(self.case.device)

    def _all_gather(self) -> Sequence[Any]:
        flat = self._flat("all_gather_single", "all_gather_into_tensor", "_all_gather_base")
        if flat is None:
            return [self._dist.all_gather(list(self.result.chunk(self.case.size)), self.given, **self._options)]
        return [flat(self.result, self.given, **self._options)]

    def _reduce_scatter(self) -> Sequence[Any]:
        flat = self._flat("reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base")
        if flat is None:
            return [self._dist.reduce_scatter(self.result, list(self.given.chunk(self.case.size)), **self._options)]
        return [flat(self.result, self.given, **self._options)]

    def _flat(self, *names: str) -> Callable[..., Any] | None:
        """The first of these functions that exists; None on gloo, which lacked them until torch 2.6, and if there is none."""
        found = (getattr(self._dist, name, None) for name in names)
        return None if self._is_gloo else next(filter(None, found), None)

    def _send_recv(self) -> Sequence[Any]:
        """Send to the next member and receive from the one before, at the same time, as nccl-tests' sendrecv."""
        case, dist = self.case, self._dist
        after, before = (case.number + 1) % case.size, (case.number - 1) % case.size
        requests = [dist.P2POp(dist.isend, self.given, after), dist.P2POp(dist.irecv, self.result, before)]
        works: Sequence[Any] = dist.batch_isend_irecv(requests)
        return works


def _parts(tensor: torch.Tensor) -> Iterator[Tuple[int, torch.Tensor]]:
    for start in range(0, tensor.numel(), TILE):
        yield start, tensor[start : start + TILE]


def _difference(found: torch.Tensor, tile: torch.Tensor, offset: int) -> Tuple[int, float, float] | None:
    """(index, value, expected value) of the first wrong element; `tile` applies from position `offset` on."""
    shift = offset % PERIOD
    expected = torch.cat([tile[shift:], tile[:shift]]) if shift else tile
    for start, part in _parts(found):
        whole = expected[: part.numel()]
        if not torch.equal(part, whole):
            index = int((part != whole).nonzero()[0].item())
            return start + index, float(part[index].item()), float(whole[index].item())
    return None


def type_of(name: str) -> torch.dtype:
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
