"""When to save, decided by rank 0 for all; and, with async_save, the save under way while training continues."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Callable, List, Mapping

from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.checkpoint.save.background import ShardedSave, Writer
from trainer.checkpoint.save.shared_memory import SharedMemory
from trainer.console import log_line
from trainer.errors import StorageError
from trainer.parallel.base import Strategy
from trainer.runtime.progress import Progress
from trainer.runtime.signals import Flag


@dataclass(frozen=True)
class _WholeSave:
    """A whole state that a thread of rank 0 writes; the future returns the problem, or ""."""

    future: Future[str]
    is_busy = False  # for the other ranks
    is_written_by_all = is_committed = True  # that is, by rank 0

    @property
    def is_done(self) -> bool:
        return self.future.done()

    def problem(self) -> str:
        return self.future.result()

    def finish_alone(self) -> str:
        return self.future.result()


@dataclass(frozen=True)
class _Writing:
    """A checkpoint being written."""

    step: int
    started: float
    stopped_s: float
    save: _WholeSave | ShardedSave


class Saver:
    """Saves at the end of steps, after `flush`. At most one checkpoint is being written; a save that falls due meanwhile is postponed."""

    def __init__(
        self, checkpoints: Checkpoints, strategy: Strategy, progress: Progress, flush: Callable[[], None]
    ) -> None:
        self.checkpoints, self.strategy, self.progress, self.flush = checkpoints, strategy, progress, flush
        self.config, self.is_main = checkpoints.config, checkpoints.group.rank.is_main
        self.memory = checkpoints.memory
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._writing: _Writing | None = None
        self._problem = ""  # of a save that ended and is not reported yet
        self._postponed = False
        self._snapshot_memory: SharedMemory | None = None  # of the last snapshot; the next one reuses it
        self._writer: Writer | None = None  # of shards
        self._cost_s = 0.0  # of the last save: the time for which training stood still
        self._saved_at = time.monotonic()
        self._losses: List[float] = []
        self._saves, self._save_s = 0, 0.0

    def poll(self, step: int) -> Flag:
        """
        Take note of a background save that has ended, and return this rank's flags for the end of `step`.

        Each rank knows whether its shard is written. Rank 0 alone knows the time and the state of the whole checkpoint.
        """
        writing = self._writing.save if self._writing else None
        mine = self._poll_memory()
        if writing and writing.is_busy and not writing.is_written_by_all:
            mine |= Flag.WRITING
        if not self.is_main:
            return mine | Flag.SAVE_FAILED if writing and writing.is_done and writing.problem() else mine
        if self._writing and writing and not writing.is_done:
            self._postpone_if_due(step)
            return Flag.POSTPONE | mine
        if writing and writing.problem():
            return mine | Flag.SAVE_FAILED
        self._report_end()
        share = self.config.save_share
        if share is not None and time.monotonic() - self._saved_at < self._cost_s / share:
            return mine | Flag.POSTPONE  # a save now would make the share of time spent on saves larger than save_share
        return mine | Flag.SAVE if self._postponed or self._is_due_by_time() else mine

    def known_flags(self, step: int) -> Flag | None:
        """
        The flags of all ranks for the end of `step`, if after_step() has begun a save in the background before it; None if they must be exchanged.

        The save counts as under way, so that no rank waits for another one that still copies its state.
        """
        if not self.config.async_save or self.memory is not None:
            return None
        if self.is_main:
            self._postpone_if_due(step)
        return Flag.POSTPONE | Flag.WRITING

    def _postpone_if_due(self, step: int) -> None:
        """On rank 0, while a checkpoint is being written: have the save that is due at the end of `step`, or was before, follow it."""
        assert self._writing is not None
        due = self._postponed or self._is_due_by_time() or self._is_due_by_step(step)
        if due and not self._postponed:
            log_line(
                f"step {self._writing.step} is still being written: the save at step {step} is put off until it is"
            )
        self._postponed = due

    def _poll_memory(self) -> Flag:
        if self.memory is None:
            return Flag.NONE
        flag, kept, reported = self.memory.poll(), self.memory.kept, self.progress.extra
        saved = reported.get("saved", 0)
        if kept > saved == reported.get("resumed", 0):
            self.progress.add(saved=kept)  # at once: orch only restarts a run that has saved something
        elif kept > saved:
            self.progress.keep({"saved": kept})
        return flag

    def needs_check(self, step: int, flags: Flag) -> bool:
        """The state after `step` is saved or kept in memory, so that it must be right; the same on every rank."""
        return self.is_due(step, flags) or (self.memory is not None and self.memory.is_due(step, flags))

    def is_due(self, step: int, flags: Flag) -> bool:
        """A save follows `step`, or the report of a failed one; the same on every rank, as `flags` come from all ranks."""
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
        if self._writer is None and self.config.async_save and not last and self._in_shards:
            self._writer = Writer(self.checkpoints.group)  # after the first step, which allocates the moments
            self._writer.prepare(self.strategy.local_state())
        if not flags & (Flag.WRITING | Flag.SAVE_FAILED):
            self._complete_shards()
        if self.memory is not None and not last and self.memory.is_due(state.step, flags):
            self.checkpoints.keep_in_memory(state, self.strategy)
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
            save = self._begun(state)
            self._cost_s = time.monotonic() - self._saved_at
            if save:
                self._writing = _Writing(state.step, self._saved_at, self._cost_s, save)
        else:
            path = self.checkpoints.save(state, self.strategy)
            if self.is_main:
                self._cost_s = time.monotonic() - self._saved_at
                log_line(f"saved {path} in {self._cost_s:.2f} s{self._next_save()}")
            self.progress.write("save", state.step, saved=state.step)
        self._saves += 1
        self._save_s += time.monotonic() - started
        self.progress.keep({"saves": self._saves, "save_s": self._save_s})

    def add_loss(self, loss: float) -> None:
        """Record the loss of a step, for the mean since the last save."""
        self._losses.append(loss)

    def before_roll_back(self) -> None:
        """Finish the save being written and forget the losses since it; call it before loading. Raises as after_step() does."""
        self._raise_problem()
        self._losses = []
        if self.memory is not None:
            self.memory.forget()

    def finish(self, *, alone: bool = False) -> str:
        """
        Wait for the checkpoint being written and the state being kept in memory; returns the problem that is not reported yet, or
        "".
        `alone`: the other ranks may not call it, so shards that are not all written are given up.
        """
        if not alone:
            if self.memory is not None:
                self.memory.finish()
            self._complete_shards()
        return self._report_end()

    def _report_end(self) -> str:
        """Take note of the end of the save under way, if there is one, as finish() does."""
        writing = self._writing
        if writing:
            self._writing = None
            self._problem = writing.save.finish_alone()
            if not self._problem and writing.save.is_committed:
                log_line(
                    f"saved {self.checkpoints.path(writing.step)} in {time.monotonic() - writing.started:.2f} s, "
                    f"of which training stood still for {writing.stopped_s:.2f} s{self._next_save()}"
                )
                self.progress.add(saved=writing.step)
        return self._problem

    def _complete_shards(self) -> None:
        """Let rank 0 complete a checkpoint in shards, if one is being written; a collective that waits for the shards."""
        save = self._writing.save if self._writing else None
        if isinstance(save, ShardedSave) and not save.is_written_by_all:
            save.complete()
            if not self.is_main and not save.problem():
                self._writing = None

    def _raise_problem(self) -> None:
        """Wait for the checkpoint being written, if any; raises StorageError on all ranks alike if a save failed, once."""
        self._complete_shards()  # a state on its way to memory does not delay the save of a preempted run
        problem = self._report_end()
        self._problem = ""
        self.checkpoints.group.raise_if_any(problem, kind=StorageError)

    def _is_due_by_time(self) -> bool:
        minutes = self.config.save_minutes
        return minutes is not None and time.monotonic() - self._saved_at >= minutes * 60

    def _next_save(self) -> str:
        share = self.config.save_share
        return f"; save_share={share:g}: the next in {self._cost_s / share:.0f} s at the earliest" if share else ""

    def _is_due_by_step(self, step: int) -> bool:
        every = self.config.keep_every
        return step % self.config.save_steps == 0 or (every is not None and step % every == 0)

    def _begun(self, state: TrainState) -> _WholeSave | ShardedSave | None:
        """The save that continues in the background; None if this rank has no part in it."""
        if self._in_shards:
            assert self._writer is not None
            return self.checkpoints.begin_shards(state, self.strategy, self._writer)
        snapshot = self.checkpoints.snapshot(state, self.strategy, self._snapshot_memory)
        if not snapshot:
            return None
        self._snapshot_memory = snapshot.memory
        return _WholeSave(self._thread.submit(self.checkpoints.write, snapshot))

    @property
    def _in_shards(self) -> bool:
        return self.checkpoints.writes_shards(self.strategy.sizes)
