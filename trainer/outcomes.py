"""The numbers of each step: exchanged during it, and read by the host during the next one, for which no rank waits for its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List

import torch

from trainer.metrics.jsonl import StepResult
from trainer.parallel.checks import Skips, check_finite
from trainer.runtime.group import Group
from trainer.runtime.signals import NUMBERS, Flag, Received, Signals


@dataclass(frozen=True)
class _Unread:
    """
    The numbers of a step that the host has not read.

    norm_step: the step whose norms came with them; 0 if they were judged before.
    read: waits for the numbers of all ranks, then the norm of this rank.
    begun, ended: timestamps of the accelerator.
    """

    step: int
    lr: float
    waited_s: float
    norm_step: int
    read: Callable[[], List[float]]
    begun: Any
    ended: Any


class Outcomes:
    """
    Call begin() at the start of a step, send() before its last backward pass, and update() after it.

    update() reads the step before, so the host queues a step while the device still computes the one before. settle() reads the
    step just made, before anything that depends on it: an evaluation, a checkpoint, the end.

    flags: of the last step that was read; all ranks have the same.
    """

    def __init__(self, group: Group, *, scales_loss: bool, skipped: int) -> None:
        """With loss scaling (fp16), all ranks may skip a step together, as the last `skipped` ones before the weights were loaded."""
        self.group, self.signals, self.skips = group, Signals(group), Skips(scales_loss=scales_loss, in_a_row=skipped)
        self.flags = Flag.NONE
        self._unread: _Unread | None = None
        self._norm, self._norm_step = torch.zeros((), device=group.device), 0
        self._begun: Any = None

    def begin(self) -> None:
        """Begin a step; time since the step before belongs to it, except after settle()."""
        if self._begun is None:
            self._begun = self.group.accelerator.timestamp()

    def send(self, loss: torch.Tensor, flags: Flag) -> None:
        """Start to exchange the loss, the flags, and the norm of the step before."""
        self.signals.send(loss, flags, self._norm)

    def update(
        self,
        step: int,
        make_update: Callable[[torch.Tensor], torch.Tensor],
        *,
        lr: float,
        waited_s: float,
    ) -> StepResult | None:
        """
        Make the update of a step, and start to read its numbers.

        Args:
            step: counted from 1 on.
            make_update: called with whether the losses of all ranks are finite, on the device; returns the norm.
            lr: of the step.
            waited_s: how long it waited for data.

        Returns:
            The result of the step before, unless settle() has returned it.

        Raises:
            NumbersError: the same on all ranks; the step before, or the one before that, made no update.
        """
        gathered = self.signals.receive()
        before = self._read() if self._unread else None
        norm = make_update(torch.isfinite(gathered[:, 0]).all())
        values = torch.cat([gathered.flatten(), norm.detach().to(gathered.dtype).reshape(1)])
        read, ended = self.group.accelerator.start_reading(values), self.group.accelerator.timestamp()
        self._unread = _Unread(step, lr, waited_s, self._norm_step, read, self._begun, ended)
        self._norm, self._norm_step, self._begun = values[-1], step, ended
        return before

    def settle(self, *, final: bool) -> StepResult:
        """
        Wait for the step just made, and compare its norm over the ranks; `final` if no other step follows.

        Raises:
            NumbersError: the same on all ranks; the step, or the one before, made no update.
        """
        result, received = self._read(), self._exchange(Flag.NONE)
        step, self._norm_step, self._begun = self._norm_step, 0, None
        self.skips.check(step, received.norms, final=final)
        return result

    def exchange(self, flags: Flag) -> None:
        """Replace the flags of all ranks, after a checkpoint to which the earlier ones led."""
        self.flags = self._exchange(flags).flags

    def _exchange(self, flags: Flag) -> Received:
        self.signals.send(torch.zeros_like(self._norm), flags, self._norm)
        return Received.decode(self.signals.receive().flatten().tolist())

    def _read(self) -> StepResult:
        unread, self._unread = self._unread, None
        assert unread is not None
        *numbers, norm = unread.read()
        assert len(numbers) == NUMBERS * self.group.rank.world_size
        received = Received.decode(numbers)
        self.flags = received.flags
        if unread.norm_step:
            self.skips.check(unread.norm_step, received.norms)
        check_finite("loss", received.losses, unread.step)
        seconds = self.group.accelerator.seconds_between(unread.begun, unread.ended)
        return StepResult(received.losses, unread.lr, norm, seconds, unread.waited_s)
