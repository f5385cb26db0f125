"""The memory of one rank among several, in a single process: its collectives send nothing, and every tensor is counted."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.runtime.group import Group
from trainer.runtime.init import initialise


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """
    Counts the bytes of all storages that operations have made and that still exist, and their maximum.

    `operations` has their names. FSDP2 frees weights by resizing their storages, so these are measured each time. Memory inside an operation is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: dict[int, weakref.ref[Any]] = {}
        self.peak: int = 0
        self.operations: set[str] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = operation(*args, **(kwargs or {}))
        self.operations.add(operation.overloadpacket.__name__)
        flat = results if isinstance(results, (tuple, list)) else [results]
        made = [value for value in flat if isinstance(value, torch.Tensor) and value.device.type != "meta"]
        is_new = [self._add(value) for value in made]
        if any(is_new):
            self.peak = max(self.peak, self.now())
        return results

    def _add(self, tensor: torch.Tensor) -> bool:
        """Count the storage of a tensor; returns False for one that is known, such as that of a view."""
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()  # of a DTensor
        known = self._storages.get(storage._cdata)
        if known is not None and known() is storage:
            return False
        self._storages[storage._cdata] = weakref.ref(storage)
        return True

    def now(self) -> int:
        """The bytes that are in memory."""
        dead = [key for key, found in self._storages.items() if found() is None]
        for key in dead:
            del self._storages[key]
        alive = [found() for found in self._storages.values()]
        return sum(int(storage.nbytes()) for storage in alive if storage is not None)


@contextlib.contextmanager
def rank_among(ranks: int) -> Iterator[Group]:
    """Rank 0 of a group whose collectives return without data."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        alone = initialise("cpu", 60.0, {})
        rank = replace(alone.rank, world_size=ranks, launched=True)
        yield replace(alone, rank=rank)
    finally:
        torch.distributed.destroy_process_group()
