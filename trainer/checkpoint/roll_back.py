"""Roll back to the last good checkpoint, and skip batches, when a loss or a gradient is not finite."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.checkpoint.saver import Saver
from trainer.console import log_line
from trainer.errors import NumbersError
from trainer.parallel.base import Strategy


@dataclass
class RollBack:
    """
    Rolls back at most config.roll_back times, on all ranks alike.

    The batches since that checkpoint, the failing one included, are skipped: they would fail again.
    Mutable: counts, and remembers the last checkpoint it returned to.
    """

    checkpoints: Checkpoints
    saver: Saver
    strategy: Strategy
    count: int = 0
    last_step: int | None = None

    def after(self, error: NumbersError, state: TrainState, samples: int) -> TrainState:
        """
        The state to continue from after an error in a step of `samples` samples, found in a step after `state`.

        Raises:
            NumbersError: the given error, if the limit is reached or nothing was saved yet.
        """
        limit = self.checkpoints.config.roll_back
        if self.count == limit:
            raise error
        self.saver.before_roll_back()
        self.strategy.discard_gradients()
        found = self.checkpoints.load_earlier(self.strategy, self.last_step)
        if found is None:
            raise error
        self.count, self.last_step = self.count + 1, found.step
        position = state.position + (error.step - state.step) * samples
        if self.checkpoints.group.rank.is_main:
            cause, left_out = str(error).partition(";")[0], (position - found.position) // samples
            log_line(
                f"WARNING: {cause}: back to {self.checkpoints.path(found.step)} (roll_back {self.count} of {limit}), "
                f"without the batches of {left_out} steps"
            )
        return replace(found, position=position)
