"""Roll back to the last good checkpoint, and skip batches that fail again, when a loss or a gradient is not finite."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.checkpoint.saver import Saver
from trainer.console import log_line
from trainer.errors import TrainerError
from trainer.parallel.base import Strategy


@dataclass
class RollBack:
    """
    Rolls back at most config.roll_back times, on all ranks alike.

    Mutable: counts, and remembers the last checkpoint it returned to.
    """

    checkpoints: Checkpoints
    saver: Saver
    strategy: Strategy
    count: int = 0
    last_step: int | None = None

    def after(self, error: TrainerError, position: int | None, samples: int) -> TrainState:
        """
        The state to continue from after an error in a step of `samples` samples.

        Args:
            error: its text is shown up to the first semicolon.
            position: to skip the batches up to this one, which would fail again; None to repeat those since the checkpoint.
            samples: of a step of all ranks.

        Raises:
            TrainerError: the given error, if the limit is reached or nothing was saved yet.
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
        if self.checkpoints.group.rank.is_main:
            path, cause = self.checkpoints.path(found.step), str(error).partition(";")[0]
            how = (
                "repeating its steps"
                if position is None
                else f"without the batches of {(position - found.position) // samples} steps"
            )
            log_line(f"WARNING: {cause}: back to {path} (roll_back {self.count} of {limit}), {how}")
        return found if position is None else replace(found, position=position)
