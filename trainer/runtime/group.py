"""The process group of all ranks, and the collectives on it. Joining it is in init.py."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, List, NoReturn, Sequence, Type, TypeVar

import torch

from ..errors import REQUEUE, TrainerError, UserError  # relative: scripts import this package under another name
from ..text import by_rank
from ..values import JsonValue
from .accelerators import Accelerator
from .exit import exit_now
from .rank import Rank
from .rendezvous import Rendezvous

CHUNK_BYTES = 64 << 20
T = TypeVar("T")
STOCK_BACKENDS = ("gloo", "nccl")  # known to run a collective while the rank computes


@dataclass(frozen=True)
class Group:
    """
    The process group of the run, or one process alone. All ranks must call the same collectives in the same order.

    byte_type: in which collectives carry bytes; float32, a number per byte, if the library does not carry uint8.
    """

    rank: Rank
    accelerator: Accelerator
    device: torch.device
    rendezvous: Rendezvous | None
    ready: str
    byte_type: torch.dtype = torch.uint8

    @property
    def ready_message(self) -> str:
        """The first log line. Rank 0: all ranks are ready; other ranks: their device."""
        return self.ready if self.rank.is_main else f"rank {self.rank.global_rank} ready, device {self.device}"

    def start_all_gather(self, mine: torch.Tensor) -> Callable[[], Sequence[torch.Tensor]]:
        """Start an all-gather; the returned function waits for it and returns the tensors in rank order. With NCCL, only the device waits."""
        if not self.rank.launched or self.rank.world_size == 1:
            return lambda: [mine]
        everyone: Any = [torch.zeros_like(mine) for _ in range(self.rank.world_size)]
        if self.accelerator.backend not in STOCK_BACKENDS:
            self.accelerator.distributed.all_gather(everyone, mine)
            return lambda: tuple(everyone)
        gather = self.accelerator.distributed.all_gather
        if self.accelerator.backend == "nccl" and hasattr(self.accelerator.distributed, "all_gather_into_tensor"):
            everyone = torch.empty((self.rank.world_size, *mine.shape), dtype=mine.dtype, device=mine.device)
            gather = self.accelerator.distributed.all_gather_into_tensor  # one copy less per rank
        work = gather(everyone, mine, async_op=True)

        def wait() -> Sequence[torch.Tensor]:
            work.wait()
            return tuple(everyone)

        return wait

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """All-gather bytes of any length; returns them in rank order."""
        sizes = [_to_int(tensor) for tensor in self._all_gather(self._tensor(len(data).to_bytes(8, "little")))]
        padded = self._tensor(data.ljust(max(1, *sizes), b"\0"))
        return [_to_bytes(tensor)[:size] for tensor, size in zip(self._all_gather(padded), sizes)]

    def gather(self, value: JsonValue) -> List[Any]:
        """All-gather a value, as JSON carries it; returns those of all ranks in their order."""
        return [json.loads(text) for text in self.gather_bytes(json.dumps(value).encode())]

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Return rank 0's bytes on every rank; `data` of the others is ignored."""
        if not self.rank.launched:
            return data
        head = self._tensor(len(data).to_bytes(8, "little"))
        self.accelerator.distributed.broadcast(head, 0)
        whole = bytearray(data if self.rank.is_main else _to_int(head))
        if whole:
            self.broadcast(torch.frombuffer(whole, dtype=torch.uint8))
        return bytes(whole)

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        """Copy the values of rank `source` into a CPU tensor of every rank, of equal shape and type; contiguous except on `source`."""
        if not self.rank.launched:
            return
        here = tensor.detach().contiguous()
        size = here.numel() * here.element_size()
        # As uint8: T20 narrows int64 silently. By address: old versions of torch cannot view all types as bytes.
        raw = (ctypes.c_char * size).from_address(here.data_ptr())
        for start in range(0, size, CHUNK_BYTES):
            part = torch.frombuffer(raw, dtype=torch.uint8, offset=start, count=min(CHUNK_BYTES, size - start))
            there = part.to(self.byte_type).to(self.device)
            self.accelerator.distributed.broadcast(there, source)
            if there is not part and self.rank.global_rank != source:
                part.copy_(there)

    def raise_if_any(self, problem: str, *, kind: Type[TrainerError] = UserError) -> None:
        """
        Continue only if no rank has a problem; "" is none.
        Raises TrainerError: of class `kind`, the same on every rank; names the ranks with a problem.
        """
        problems = [encoded.decode() for encoded in self.gather_bytes(problem.encode())]
        if not any(problems):
            return
        if len(set(problems)) == 1:
            raise kind.agreed(problems[0])
        raise kind.agreed(by_rank({rank: text for rank, text in enumerate(problems) if text}))

    def on_all(self, function: Callable[[], T]) -> T:
        """Call `function` on every rank; a UserError of any rank is raised on all of them."""
        try:
            result = function()
        except UserError as exc:
            self.raise_if_any(str(exc))
            raise  # not reached: raise_if_any() raises
        self.raise_if_any("")
        return result

    def set_timeout(self, seconds: float) -> None:
        """Limit collectives started from now on. No effect on other backends than gloo and nccl, nor before torch 2.1."""
        c10d: Any = getattr(self.accelerator.distributed, "distributed_c10d", None)
        # There is no public function; torchtitan uses this one.
        set_pg_timeout = getattr(c10d, "_set_pg_timeout", None)
        if not self.rank.launched or self.accelerator.backend not in STOCK_BACKENDS or set_pg_timeout is None:
            return
        for group in list(c10d._world.pg_map):  # noqa: SLF001 -- as above
            set_pg_timeout(timedelta(seconds=seconds), group)

    def close(self, code: int) -> NoReturn:
        """Leave the group and end the process with `code`. All ranks must call: some libraries wait here for the others."""
        if self.rank.launched:
            self.accelerator.distributed.destroy_process_group()
        if self.rendezvous is not None:
            self.rendezvous.leave(after_rank_0=code not in (0, REQUEUE))
        exit_now(code)

    def _tensor(self, data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.byte_type).to(self.device)

    def _all_gather(self, mine: torch.Tensor) -> Sequence[torch.Tensor]:
        return self.start_all_gather(mine)()


def _to_bytes(tensor: torch.Tensor) -> bytes:
    """Copy by address: numpy may be missing, and tolist() takes seconds on a checkpoint."""
    here = tensor.cpu().to(torch.uint8).contiguous()
    return ctypes.string_at(here.data_ptr(), here.numel())


def _to_int(tensor: torch.Tensor) -> int:
    return int.from_bytes(_to_bytes(tensor), "little")
