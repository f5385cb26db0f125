"""The loss, the last norm and the flags of every rank, exchanged once per step while gradients are computed, and once more before a checkpoint."""

from __future__ import annotations

import enum
import functools
import operator
from dataclasses import dataclass
from typing import Callable, Sequence

import torch

from trainer.runtime.group import Group

NUMBERS = 3
"""The numbers that a rank sends: its loss, its flags, its last norm."""


class Flag(enum.IntFlag):
    """Facts that only some rank knows and all ranks act on at the end of the next step."""

    NONE = 0
    PREEMPTED = 1
    """A preemption signal has arrived: its time is nearly up."""
    SAVE = 2
    """A save is due, for a reason other than the step number."""
    POSTPONE = 4
    """The last checkpoint is still being written, so no save can begin."""
    SAVE_FAILED = 8
    WRITING = 16
    """This rank's shard of the last checkpoint is still being written."""
    KEEPING = 64
    """This rank's last state in memory is still being hashed or copied."""


@dataclass(frozen=True)
class Received:
    """The values of one exchange, in rank order; the norms are of the last update before it."""

    losses: Sequence[float]
    flags: Flag
    norms: Sequence[float]

    @classmethod
    def decode(cls, numbers: Sequence[float]) -> Received:
        """Decode the numbers of all ranks; a flag counts if at least one rank has set it."""
        flags = functools.reduce(operator.or_, (Flag(round(encoded)) for encoded in numbers[1::NUMBERS]))
        return cls(tuple(numbers[0::NUMBERS]), flags, tuple(numbers[2::NUMBERS]))


class Signals:
    """
    Call send() before the backward pass and receive() after it: the all-gather between them costs no extra wait.

    All numbers stay on the device, and the host waits for them only where the backend needs it, as gloo does.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._wait: Callable[[], Sequence[torch.Tensor]] | None = None

    def send(self, loss: torch.Tensor, flags: Flag, norm: torch.Tensor) -> None:
        """Start to exchange the values of this rank."""
        # Filled, not copied: a copy from the host would wait for the device.
        encoded = torch.full_like(norm, float(flags))
        self._wait = self.group.start_all_gather(torch.stack([loss.detach().to(norm.dtype), encoded, norm]))

    def receive(self) -> torch.Tensor:
        """Return the numbers of all ranks, one row per rank, on the device."""
        assert self._wait is not None  # send() comes first
        gathered = torch.stack(tuple(self._wait()))
        self._wait = None
        return gathered
