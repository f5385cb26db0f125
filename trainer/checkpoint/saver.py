"""When to save, decided by rank 0 for all; and, with async_save, the thread that writes while training continues."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Callable, List, Mapping

from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.console import log_line
from trainer.errors import StorageError
from trainer.parallel.base import Strategy
from trainer.runtime.progress import Progress
from trainer.runtime.signals import Flag


@dataclass(frozen=True)
class _Writing:
    """A checkpoint being written; the future returns the problem, or ""."""

    step: int
    started: float
    stopped_s: float
    problem: Future[str]


class Saver:
    """Saves at the end of steps. At most one checkpoint is being written; a save that falls due meanwhile is postponed."""

    def __init__(
        self, checkpoints: Checkpoints, strategy: Strategy, progress: Progress, flush: Callable[[], None]
    ) -> None:
        """Calls `flush` before each save."""
        self.checkpoints, self.strategy, self.progress, self.flush = checkpoints, strategy, progress, flush
        self.config, self.is_main = checkpoints.config, checkpoints.group.rank.is_main
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._writing: _Writing | None = None
        self._problem = ""  # of a save that ended and is not reported yet
        self._postponed = False
        self._staging: Any = None  # the tensors of the last snapshot; it is written before the next one is taken
        self._saved_at = time.monotonic()
        self._losses: List[float] = []
        self._saves, self._save_s = 0, 0.0

    def poll(self, step: int) -> Flag:
        """
        Take note of a background save that has ended, and return rank 0's flags; call it once per step.

        Rank 0 alone knows the time and the state of the checkpoint being written.
        """
        if not self.is_main:
            return Flag.NONE
        wanted = self._postponed or self._is_due_by_time()
        if self._writing and not self._writing.problem.done():
            due = wanted or self._is_due_by_step(step)
            if due and not self._postponed:
                log_line(
                    f"step {self._writing.step} is still being written: the save at step {step} is put off until it is"
                )
            self._postponed = due
            return Flag.POSTPONE
        if self.finish():
            return Flag.SAVE_FAILED
        return Flag.SAVE if wanted else Flag.NONE

    def is_due(self, step: int, flags: Flag) -> bool:
        """Return True if a save follows `step`, or the report of a failed one; the same on every rank, as `flags` come from all ranks."""
        if flags & (Flag.SAVE | Flag.SAVE_FAILED):
            return True
        return self._is_due_by_step(step) and not flags & Flag.POSTPONE

    def after_step(self, state: TrainState, flags: Flag, evaluated: Mapping[str, float], *, last: bool) -> None:
        """
        Save if it is due; after the `last` step everything is on disk when this returns.

        Args:
            state: after the step.
            flags: of all ranks.
            evaluated: the evaluation after the step, if any.
            last: no step follows.

        Raises:
            StorageError: on all ranks alike; this save failed, or the one being written did.
        """
        if state.last_loss is not None:
            self._losses.append(state.last_loss)
        if not (last or self.is_due(state.step, flags)):
            return
        started = time.monotonic()
        self.progress.write("save", state.step)
        if last or flags & Flag.SAVE_FAILED:
            self._raise_problem()
        self.flush()
        self._postponed, self._saved_at = False, time.monotonic()
        # Without eval_steps only the last step is evaluated: keep_best could compare that loss with no other.
        eval_loss = evaluated.get("eval_loss") if self.config.eval_steps else None
        state = replace(state, mean_loss=sum(self._losses) / max(1, len(self._losses)), eval_loss=eval_loss)
        self._losses = []
        if self.config.async_save and not last:
            self._begin(state)
        else:
            self._save(state)
        self._saves += 1
        self._save_s += time.monotonic() - started
        self.progress.extra.update(saves=self._saves, save_s=self._save_s)  # written with the next phase

    def before_roll_back(self) -> None:
        """Finish the save being written and forget the losses since it; call it before loading. Raises as after_step() does."""
        self._raise_problem()
        self._losses = []

    def finish(self) -> str:
        """Wait for the checkpoint being written, if any; returns the problem that is not reported yet, or ""."""
        writing = self._writing
        if writing:
            self._writing = None
            self._problem = writing.problem.result()
            if not self._problem:
                log_line(
                    f"saved {self.checkpoints.path(writing.step)} in {time.monotonic() - writing.started:.2f} s, "
                    f"of which training stood still for {writing.stopped_s:.2f} s"
                )
                self.progress.add(saved=writing.step)
        return self._problem

    def _raise_problem(self) -> None:
        """Wait as finish() does; raises StorageError on all ranks alike if a save failed, once."""
        problem = self.finish()
        self._problem = ""
        self.checkpoints.group.raise_if_any(problem, kind=StorageError)

    def _is_due_by_time(self) -> bool:
        minutes = self.config.save_minutes
        return minutes is not None and time.monotonic() - self._saved_at >= minutes * 60

    def _is_due_by_step(self, step: int) -> bool:
        """Return True if save_steps or keep_every requires a save at this step."""
        every = self.config.keep_every
        return step % self.config.save_steps == 0 or (every is not None and step % every == 0)

    def _save(self, state: TrainState) -> None:
        path = self.checkpoints.save(state, self.strategy)
        if self.is_main:
            log_line(f"saved {path} in {time.monotonic() - self._saved_at:.2f} s")
        self.progress.write("save", state.step, saved=state.step)

    def _begin(self, state: TrainState) -> None:
        snapshot = self.checkpoints.snapshot(state, self.strategy, is_async=True, staging=self._staging)
        if snapshot:
            self._staging = snapshot.tensors if self.strategy.state_is_live else None
            stopped_s = time.monotonic() - self._saved_at
            problem = self._thread.submit(self.checkpoints.write, snapshot)
            self._writing = _Writing(state.step, self._saved_at, stopped_s, problem)
