"""Checks that keep non-finite numbers out of the weights and the checkpoints."""

from __future__ import annotations

import math
from typing import Sequence

from trainer.errors import NumbersError
from trainer.text import by_rank, fold

# Relative. All ranks compute the norm of the same gradient; different CPUs may add in another order.
NORM_TOLERANCE = 1e-3
# In a row, under fp16. A loss scale starts at 2**16, or at 2**32 in old DeepSpeed files: halved this often, it is far below 1.
MOST_SKIPS = 40


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

        Raises:
            NumbersError: names ranks and step; or, with loss scaling, too many steps in a row were skipped, or all of them.
        """
        bad = [rank for rank, norm in enumerate(norms) if not math.isfinite(norm)]
        if bad and not (self.scales_loss and len(bad) == len(norms)):
            raise NumbersError(_message(bad, len(norms), step), step)
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

    Raises:
        NumbersError: names the ranks whose norm differs from that of most ranks, or all if no norm is that of most ranks.
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
    raise NumbersError(message, step)


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
