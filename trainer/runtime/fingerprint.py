"""Fingerprints of 64 bits of tensors that are equal on all ranks, bit by bit."""

from __future__ import annotations

import hashlib
import struct
from typing import Iterable, List, Sequence

import torch

KEPT = 8  # in the progress file: orch reads those of the nodes up to three seconds apart, and compares equal steps
DEVICES = ("cpu", "cuda")  # others may have no views of another type
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WORD_BYTES = 8


def comparable(tensors: Iterable[torch.Tensor]) -> List[torch.Tensor]:
    """The tensors that have a fingerprint."""
    return [
        tensor
        for tensor in tensors
        if tensor.device.type in DEVICES and tensor.is_floating_point() and tensor.layout is torch.strided
    ]


def fingerprint(tensors: Sequence[torch.Tensor]) -> str:
    """A hash of the sum of each tensor's bit patterns."""
    return digest(bit_sums(tensors).tolist())


def bit_sums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sums of each tensor's bit patterns, on its device: one reduction per tensor."""
    with torch.no_grad():
        sums: List[torch.Tensor] = [part.sum(dtype=torch.int64) for tensor in tensors for part in _words(tensor)]
        return torch.stack([part.to(sums[0].device) for part in sums])


def _words(tensor: torch.Tensor) -> List[torch.Tensor]:
    """The bits of a tensor as 64-bit integers, which are summed ten times as fast on a CPU as shorter ones; and those of a rest."""
    flat = tensor.detach().reshape(-1)
    size = flat.element_size()
    if flat.storage_offset() * size % WORD_BYTES:
        flat = flat.clone()
    whole = flat.numel() - flat.numel() % (WORD_BYTES // size)
    parts = [flat[:whole].view(torch.int64), flat[whole:].view(INTEGERS[size])]
    return [part for part in parts if part.numel()]


def digest(numbers: Sequence[int]) -> str:
    return hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=8).hexdigest()
