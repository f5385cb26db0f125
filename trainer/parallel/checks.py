"""The checks that keep a number gone wrong out of the weights and out of the checkpoints."""

from __future__ import annotations

import math
from typing import Sequence

from trainer.errors import NumbersError
from trainer.runtime.group import Told
from trainer.text import fold

# In a row, under fp16. A loss scale begins at 2**16, or at 2**32 in old DeepSpeed files: halved as often, it is far below 1.
MOST_SKIPS = 40


def check_finite(what: str, values: Sequence[float], step: int) -> None:
    """
    Call it before the weights are touched.

    Args:
        what: names the values in the message.
        values: of all ranks, in rank order.
        step: the step they belong to.

    Raises:
        NumbersError: names rank and step.
    """
    bad = [rank for rank, value in enumerate(values) if not math.isfinite(value)]
    if bad:
        where = f"rank {fold(bad)}" if len(values) > 1 else "all ranks"
        raise NumbersError(
            f"{where}: {what} is {values[bad[0]]} at step {step}; the weights were not updated. "
            "Go on from the last checkpoint with a smaller lr, or look at the data and the device of that rank"
        )


class Skips:
    """
    Steps without an update, because the gradient norm was not finite: judged by what all ranks report.

    The norm of DDP is computed by each rank from the same summed gradients, but no rank sees that of another. So a rank
    without an update reports that in its next note, and all ranks fail together. Until then nothing may be saved.
    """

    def __init__(self, *, scales_loss: bool) -> None:
        """With loss scaling (fp16), all ranks may skip a step together: the scale is halved for the next one."""
        self.scales_loss = scales_loss
        self._step = self._in_a_row = 0
        self._is_open = False  # the last step is not judged yet
        self._is_mine = False

    def begin(self) -> None:
        """Forget the steps so far: the weights have been loaded."""
        self._in_a_row = 0
        self._is_open = self._is_mine = False

    def add(self, step: int, norm: float) -> None:
        """This rank's gradient norm of `step`; the update was made if it is finite."""
        self._step, self._is_open, self._is_mine = step, True, not math.isfinite(norm)

    def flag(self) -> Told:
        """The flag for this rank's next note."""
        return Told.SKIPPED if self._is_mine else Told.NOTHING

    def check(self, told: Sequence[Told], *, final: bool = False) -> None:
        """
        Judge the last step, once, by the flags of all ranks; it is the `final` one if no other follows.

        Raises:
            NumbersError: names ranks and step; or, with loss scaling, too many steps in a row were skipped, or all of them.
        """
        if not self._is_open:
            return
        self._is_open = self._is_mine = False
        bad = [rank for rank, one in enumerate(told) if one & Told.SKIPPED]
        if bad and not (self.scales_loss and len(bad) == len(told)):
            raise NumbersError(_message(bad, len(told), self._step))
        self._in_a_row = self._in_a_row + 1 if bad else 0
        if self._in_a_row == MOST_SKIPS or (final and self._in_a_row == self._step):
            raise NumbersError(
                f"all ranks: gradient norm is not finite at {self._in_a_row} steps in a row, {self._step - self._in_a_row + 1} "
                f"to {self._step}, however small the loss scale of fp16 became; the weights were not updated. Take "
                "precision=bf16, or a smaller lr; if the norm is not finite with precision=fp32 either, look at the model"
            )


def _message(bad: Sequence[int], ranks: int, step: int) -> str:
    if len(bad) < ranks:
        return (
            f"rank {fold(bad)}: gradient norm is not finite at step {step}, and it is on all other ranks, though all have "
            "the same gradient: the device of that rank probably computes wrongly. Exclude its node, and start again from "
            "the last checkpoint"
        )
    return (
        f"all ranks: gradient norm is not finite at step {step}; the weights were not updated. Go on from the last "
        "checkpoint with a smaller lr, or look at the data"
    )
