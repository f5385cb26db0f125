"""Memory that outlasts or is read by another process than the one that fills it: the content of a shard, as it is in the file."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from typing import Mapping

import torch

from trainer import safetensors
from trainer.runtime.accelerators import Accelerator

POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, of Linux 5.14; mmap has no name for it
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class SharedMemory:
    """An open file in memory, and its mapping, which only grows."""

    def __init__(self, descriptor: int, accelerator: Accelerator) -> None:
        self.descriptor, self.accelerator = descriptor, accelerator
        self._mapped: mmap.mmap | None = None
        self._is_pinned = False

    @classmethod
    def anonymous(cls, accelerator: Accelerator) -> SharedMemory:
        """Memory without a name, which ends with the processes that have it open."""
        if hasattr(os, "memfd_create"):  # not in a Python built for glibc < 2.27
            return cls(os.memfd_create("checkpoint"), accelerator)
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            return cls(os.dup(file.fileno()), accelerator)

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """
        Copy the tensors from their device, in the safetensors format; returns the number of bytes.

        The copies are complete once the device has done what was queued. Tensors of larger elements must precede others.

        Raises:
            OSError: there is not enough memory.
        """
        header = safetensors.header_bytes(tensors, {})
        size = len(header) + _tensor_bytes(tensors)
        mapped = self._reserve(size)
        # in this thread, which has this rank's device: with CUDA, that of another one is the first of the node
        if not self._is_pinned:
            self.accelerator.pin(_address(mapped), len(mapped))
            self._is_pinned = True
        mapped[: len(header)] = header
        start = len(header)
        for tensor in tensors.values():
            if tensor.numel():
                target = torch.frombuffer(mapped, dtype=tensor.dtype, count=tensor.numel(), offset=start)
                target.copy_(tensor.detach(), non_blocking=True)
            start += tensor.numel() * tensor.element_size()
        return size

    def close(self) -> None:
        """Close the file; the memory lasts as long as its mappings."""
        self._unmap()
        os.close(self.descriptor)

    def view(self, size: int) -> memoryview:
        """The first `size` bytes, to be read or written by any thread, and not by the device."""
        return memoryview(self._reserve(size))[:size]

    def allocate(self, size: int) -> None:
        """
        Map `size` bytes at least; any thread may do so before the memory is used.

        The pages are allocated: without memory for them, a write would be a SIGBUS. They are mapped by one call, not by a fault each.
        """
        if self._mapped is None or len(self._mapped) < size:
            os.posix_fallocate(self.descriptor, 0, size)
            self._unmap()
            if os.fstat(self.descriptor).st_size > size:  # an earlier process has kept more
                os.ftruncate(self.descriptor, size)
            self._mapped = mmap.mmap(self.descriptor, size)
            _madvise(_address(self._mapped), size, POPULATE_WRITE)  # older kernels refuse it

    def _reserve(self, size: int) -> mmap.mmap:
        """The mapping, of `size` bytes at least."""
        self.allocate(size)
        assert self._mapped is not None
        return self._mapped

    def _unmap(self) -> None:
        if self._mapped is not None and self._is_pinned:
            self.accelerator.unpin(_address(self._mapped))
        self._mapped, self._is_pinned = None, False


def size_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the number of bytes that fill() needs."""
    return len(safetensors.header_bytes(tensors, {})) + _tensor_bytes(tensors)


def _tensor_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _address(mapped: mmap.mmap) -> int:
    return torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()
