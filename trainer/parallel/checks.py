"""Checks that keep non-finite numbers out of the weights and the checkpoints."""

from __future__ import annotations

import math
from typing import Sequence

from trainer.errors import NumbersError
from trainer.runtime.signals import Flag
from trainer.text import fold

# In a row, under fp16. A loss scale starts at 2**16, or at 2**32 in old DeepSpeed files: halved this often, it is far below 1.
MOST_SKIPS = 40


def check_finite(quantity: str, values: Sequence[float], step: int) -> None:
    """
    Check one value per rank, before the weights are updated.

    Args:
        quantity: name of the values, for the message.
        values: in rank order.
        step: the step they belong to.

    Raises:
        NumbersError: names rank and step.
    """
    bad = [rank for rank, value in enumerate(values) if not math.isfinite(value)]
    if bad:
        ranks = f"rank {fold(bad)}" if len(values) > 1 else "all ranks"
        raise NumbersError(
            f"{ranks}: {quantity} is {values[bad[0]]} at step {step}; the weights were not updated. "
            "Continue from the last checkpoint with a smaller lr, or look at the data and the device of that rank"
        )


class Skips:
    """
    Steps without an update because the gradient norm was not finite, judged by the flags of all ranks.

    Under DDP each rank computes the norm from the same summed gradients, and no rank sees another rank's norm. So a rank
    without an update reports it with its next flags, and all ranks fail together. Until then nothing may be saved.
    """

    def __init__(self, *, scales_loss: bool) -> None:
        """With loss scaling (fp16), all ranks may skip a step together: the scale is then halved."""
        self.scales_loss = scales_loss
        self.in_a_row = 0
        """The number of steps in a row that all ranks skipped, up to the last one that was judged."""
        self._step = 0
        self._is_pending = False  # the last step is not judged yet
        self._skipped = False

    def reset(self, in_a_row: int) -> None:
        """Forget the steps so far, after weights were loaded before which all ranks skipped `in_a_row` steps."""
        self.in_a_row = in_a_row
        self._is_pending = self._skipped = False

    def add(self, step: int, norm: float) -> None:
        """Record this rank's gradient norm of `step`; the update was made if it is finite."""
        self._step, self._is_pending, self._skipped = step, True, not math.isfinite(norm)

    def flag(self) -> Flag:
        """Return the flag to send next."""
        return Flag.SKIPPED if self._skipped else Flag.NONE

    def check(self, flags: Sequence[Flag], *, final: bool = False) -> None:
        """
        Judge the last step, once, by the flags of all ranks; `final` if no other step follows.

        Raises:
            NumbersError: names ranks and step; or, with loss scaling, too many steps in a row were skipped, or all of them.
        """
        if not self._is_pending:
            return
        self._is_pending = self._skipped = False
        bad = [rank for rank, flag in enumerate(flags) if flag & Flag.SKIPPED]
        if bad and not (self.scales_loss and len(bad) == len(flags)):
            raise NumbersError(_message(bad, len(flags), self._step))
        self.in_a_row = self.in_a_row + 1 if bad else 0
        if self.in_a_row == MOST_SKIPS or (final and self.in_a_row == self._step):
            raise NumbersError(
                f"all ranks: gradient norm is not finite at {self.in_a_row} steps in a row, {self._step - self.in_a_row + 1} "
                f"to {self._step}, however small the loss scale of fp16 became; the weights were not updated. Take "
                "precision=bf16, or a smaller lr; if the norm is not finite with precision=fp32 either, look at the model"
            )


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
