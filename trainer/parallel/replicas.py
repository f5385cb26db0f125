"""
Fingerprints of the values that are equal on all ranks, for the progress file: orch compares them, and names a rank that differs.

Without a collective: a replica that has diverged, such as by a flipped bit in memory, does not fail and is not noticed by the others.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Callable, Dict, List, Sequence

import torch

from trainer.runtime.fingerprint import KEPT, bit_sums, comparable, digest


class Replicas:
    """The fingerprints of this rank after every `every` steps, the newest KEPT of them; none with one rank or every=0."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        start_reading: Callable[[torch.Tensor], Callable[[], List[Any]]],
        *,
        world_size: int,
        every: int,
    ) -> None:
        """
        Take fingerprints of these parameters and of the gradient's norm.

        Args:
            parameters: the parameters of which each rank has the same whole copy; empty under a strategy that shards them.
            start_reading: of the accelerator.
        """
        self.start_reading = start_reading
        self.parameters = comparable(parameters)
        self.world_size = world_size
        self.every = every if world_size > 1 else 0
        self._newest: Dict[str, Dict[str, str]] = {}
        self._unread: Dict[int, Callable[[], List[Any]] | None] = {}

    def after_step(self, step: int, *, last: bool) -> None:
        """Start to read the parameters, if a fingerprint is due."""
        if self.every and (step % self.every == 0 or last):
            self._unread[step] = self.start_reading(bit_sums(self.parameters)) if self.parameters else None

    def read(self, step: int, norm: float, *, roll_backs: int) -> Dict[str, Any]:
        """Return the values for the progress file after a step, of which after_step() was called; empty if no fingerprint was due."""
        if step not in self._unread:
            return {}
        sums = self._unread.pop(step)
        number = norm if math.isfinite(norm) else math.inf  # there are many NaNs
        values = {"gradient norm": digest(struct.unpack("<q", struct.pack("<d", number)))}
        if sums is not None:
            values["parameters"] = digest(sums())
        self._newest[f"{step} after roll-back {roll_backs}" if roll_backs else str(step)] = values
        while len(self._newest) > KEPT:
            del self._newest[next(iter(self._newest))]
        return {"replicas": {"count": self.world_size, "steps": dict(self._newest)}}
