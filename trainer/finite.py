"""The check that keeps a number gone wrong out of the weights."""

from __future__ import annotations

import math
from typing import Sequence

from trainer.errors import NumbersError
from trainer.roll_call import fold


def check_finite(what: str, values: Sequence[float], step: int) -> None:
    """
    Call it before the weights are touched.

    Args:
        what: names the values in the message.
        values: in rank order, or a single one that all ranks share.
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
