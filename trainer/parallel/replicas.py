"""
Fingerprints of the values that are equal on all ranks, for the progress file: orch compares them, and names a rank that differs.

Without a collective: a replica that has diverged, such as by a flipped bit in memory, does not fail and is not noticed by the others.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any, Dict, List, Sequence

import torch

KEPT = 8  # orch reads the progress of the nodes up to three seconds apart, and compares equal steps
DEVICES = ("cpu", "cuda")  # others may have no views of another type
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WORD_BYTES = 8


class Replicas:
    """The fingerprints of this rank after every `every` steps, the newest KEPT of them; none with one rank or every=0."""

    def __init__(self, parameters: Sequence[torch.Tensor], *, world_size: int, every: int) -> None:
        """
        Take fingerprints of these parameters and of the gradient's norm.

        Args:
            parameters: those of which each rank has the same whole copy; empty under a strategy that shards them.
        """
        self.parameters = [
            parameter for parameter in parameters if parameter.device.type in DEVICES and parameter.is_floating_point()
        ]
        self.world_size = world_size
        self.every = every if world_size > 1 else 0
        self._newest: Dict[str, Dict[str, str]] = {}

    def after_step(self, step: int, norm: float, *, roll_backs: int, last: bool) -> Dict[str, Any]:
        """Return the values for the progress file; empty if no fingerprint is due."""
        if not self.every or (step % self.every and not last):
            return {}
        number = norm if math.isfinite(norm) else math.inf  # there are many NaNs
        values = {"gradient norm": _digest(struct.unpack("<q", struct.pack("<d", number)))}
        if self.parameters:
            values["parameters"] = fingerprint(self.parameters)
        self._newest[f"{step} after roll-back {roll_backs}" if roll_backs else str(step)] = values
        while len(self._newest) > KEPT:
            del self._newest[next(iter(self._newest))]
        return {"replicas": {"count": self.world_size, "steps": self._newest}}


def fingerprint(tensors: Sequence[torch.Tensor]) -> str:
    """A hash of the sum of each tensor's bit patterns: one reduction per tensor, and one wait for the device."""
    with torch.no_grad():
        sums: List[torch.Tensor] = [part.sum(dtype=torch.int64) for tensor in tensors for part in _words(tensor)]
        return _digest(torch.stack([part.to(sums[0].device) for part in sums]).tolist())


def _words(tensor: torch.Tensor) -> List[torch.Tensor]:
    """The bits of a tensor as 64-bit integers, which are summed ten times as fast on a CPU as shorter ones; and those of a rest."""
    flat = tensor.detach().reshape(-1)
    size = flat.element_size()
    if flat.storage_offset() * size % WORD_BYTES:
        flat = flat.clone()
    whole = flat.numel() - flat.numel() % (WORD_BYTES // size)
    parts = [flat[:whole].view(torch.int64), flat[whole:].view(INTEGERS[size])]
    return [part for part in parts if part.numel()]


def _digest(numbers: Sequence[int]) -> str:
    return hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=8).hexdigest()
