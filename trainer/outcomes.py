"""
The numbers of each step: exchanged during it, and read by the host during the next one, for which no rank waits for its device. The
checks of them keep non-finite numbers out of the weights and the checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, List, Sequence

import torch

from trainer.errors import NumbersError, Wrong
from trainer.metrics.jsonl import StepResult
from trainer.runtime.group import Group
from trainer.runtime.signals import NUMBERS, Flag, Received, Signals
from trainer.text import by_rank, fold

# Relative. All ranks compute the norm of the same gradient; different CPUs may add in another order.
NORM_TOLERANCE = 1e-3
# In a row, under fp16. A loss scale starts at 2**16, or at 2**32 in old DeepSpeed files: halved this often, it is far below 1.
MOST_SKIPS = 40


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
        self, step: int, make_update: Callable[[torch.Tensor], torch.Tensor], *, lr: float, waited_s: float
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
        Raises NumbersError: the same on all ranks; the step, or the one before, made no update.
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


def check_finite(quantity: str, values: Sequence[float], step: int) -> None:
    """
    Check one value per rank.

    Args:
        quantity: name of the values, for the message.
        values: in rank order.
        step: the step they belong to; the device made no update if one of them is not finite.

    Raises:
        NumbersError: names rank and step.
    """
    bad = [rank for rank, value in enumerate(values) if not math.isfinite(value)]
    if bad:
        ranks = f"rank {fold(bad)}" if len(values) > 1 else "all ranks"
        raise NumbersError(
            f"{ranks}: {quantity} is {values[bad[0]]} at step {step}; the weights were not updated. "
            "Continue from the last checkpoint with a smaller lr, or look at the data and the device of that rank",
            step,
            ranks=bad,
        )


class Skips:
    """
    Steps without an update because the gradient norm was not finite, and norms that differ, judged by the values of all ranks.

    Under DDP each rank computes the norm from the same summed gradients, and no rank sees another rank's norm. So a rank
    sends it with its next flags, and all ranks fail together. Until then nothing may be saved.
    """

    def __init__(self, *, scales_loss: bool, in_a_row: int = 0) -> None:
        """With loss scaling (fp16), all ranks may skip a step together: the scale is then halved."""
        self.scales_loss = scales_loss
        self.in_a_row = in_a_row
        """The number of steps in a row that all ranks skipped, up to the last one that was judged."""

    def check(self, step: int, norms: Sequence[float], *, final: bool = False) -> None:
        """
        Judge a step, once, by the norms of all ranks; `final` if no other step follows.
        Raises NumbersError: names ranks and step; or, with loss scaling, too many steps in a row were skipped, or all of them.
        """
        bad = [rank for rank, norm in enumerate(norms) if not math.isfinite(norm)]
        if bad and not (self.scales_loss and len(bad) == len(norms)):
            of: Wrong = "norm" if len(bad) < len(norms) else "gradient"
            raise NumbersError(_message(bad, len(norms), step), step, ranks=bad, of=of)
        if not bad:
            check_equal_norms(norms, step)
        self.in_a_row = self.in_a_row + 1 if bad else 0
        if self.in_a_row == MOST_SKIPS or (final and self.in_a_row == step):
            raise NumbersError(
                f"all ranks: gradient norm is not finite at {self.in_a_row} steps in a row, {step - self.in_a_row + 1} "
                f"to {step}, however small the loss scale of fp16 became; the weights were not updated. Take "
                "precision=bf16, or a smaller lr; if the norm is not finite with precision=fp32 either, look at the model",
                step,
            )


def check_equal_norms(norms: Sequence[float], step: int) -> None:
    """
    Check the norms that all ranks computed of the same gradient.
    Raises NumbersError: names the ranks whose norm differs from that of most ranks, or all if no norm is that of most ranks.
    """
    middle = sorted(norms)[len(norms) // 2]
    differing = [rank for rank, norm in enumerate(norms) if not math.isclose(norm, middle, rel_tol=NORM_TOLERANCE)]
    if not differing:
        return
    if 2 * len(differing) < len(norms):
        found = f"rank {fold(differing)}: gradient norm is {norms[differing[0]]:g} at step {step} but {middle:g} on most ranks"
        suspect = "the device of that rank probably computes wrongly. Exclude its node"
    else:
        found = f"gradient norm at step {step} is " + by_rank(
            {rank: f"{norm:g}" for rank, norm in enumerate(norms)}
        ).replace("\n", "; ")
        suspect = "one of these devices probably computes wrongly. Test their nodes (orch check --level full)"
    message = f"{found}, though all have the same gradient; {suspect}, and restart from the last checkpoint"
    ranks = differing if 2 * len(differing) < len(norms) else range(len(norms))
    raise NumbersError(message, step, ranks=ranks, of="norm")


def _message(bad: Sequence[int], ranks: int, step: int) -> str:
    if len(bad) < ranks:
        return (
            f"rank {fold(bad)}: gradient norm is not finite at step {step} but finite on all other ranks, though all have the "
            "same gradient; the device of that rank probably computes wrongly. Exclude its node, and restart from the last "
            "checkpoint"
        )
    return (
        f"all ranks: gradient norm is not finite at step {step}; the weights were not updated. Continue from the last "
        "checkpoint with a smaller lr, or look at the data"
    )
