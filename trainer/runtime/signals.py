"""The loss, the last norm and the flags of every rank, exchanged once per step while gradients are computed, and once more before a checkpoint."""

from __future__ import annotations

import enum
import functools
import operator
from dataclasses import dataclass
from typing import Callable, Sequence

import torch

from trainer.runtime.group import Group


class Flag(enum.IntFlag):
    """Facts that only some rank knows and all ranks act on at the end of a step."""

    NONE = 0
    PREEMPTED = 1
    """A preemption signal has arrived: its time is nearly up."""
    SAVE = 2
    """A save is due, for a reason other than the step number."""
    POSTPONE = 4
    """The last checkpoint is still being written, so no save can begin."""
    SAVE_FAILED = 8
    SKIPPED = 16
    """It made no update in its last step: the gradient norm was not finite. Before a save that is this step, else the one before."""


@dataclass(frozen=True)
class Received:
    """The values of one exchange, in rank order; the norms are of the last update before it."""

    losses: Sequence[float]
    flags: Sequence[Flag]
    norms: Sequence[float]

    @property
    def union(self) -> Flag:
        """The flags that at least one rank has set."""
        return functools.reduce(operator.or_, self.flags, Flag.NONE)


class Signals:
    """
    Call send() before the backward pass and receive() after it: the all-gather between them costs no extra wait.

    Call both once more before a checkpoint.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._wait: Callable[[], Sequence[torch.Tensor]] | None = None

    def send(self, loss: torch.Tensor, flags: Flag, norm: float) -> None:
        """Start to exchange the values of this rank; the loss stays on its device."""
        values = torch.tensor([0.0, float(flags), norm], dtype=torch.float32).to(self.group.device)
        values[0] = loss.detach()
        self._wait = self.group.start_all_gather(values)

    def receive(self) -> Received:
        """Wait for the values of all ranks. The host waits for the device here."""
        assert self._wait is not None  # send() comes first
        losses, flags, norms = zip(*(values.tolist() for values in self._wait()))
        self._wait = None
        return Received(losses, [Flag(round(encoded)) for encoded in flags], norms)
