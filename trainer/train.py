"""The training: data, checkpoints, model on all ranks, and the loop over steps. One Trainer per process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Tuple

import torch

from trainer.announce import announce
from trainer.checkpoint.initial import load_initial
from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.checkpoint.roll_back import RollBack
from trainer.checkpoint.saver import Saver
from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.data.batches import Batches
from trainer.data.split import open_split
from trainer.errors import REQUEUE, NumbersError
from trainer.evaluation import Evaluation
from trainer.metrics.hub import MetricsHub
from trainer.metrics.jsonl import StepResult, Summary
from trainer.optim.schedule import Schedule
from trainer.parallel import build_strategy
from trainer.parallel.checks import Skips, check_finite
from trainer.parallel.replicas import Replicas
from trainer.runtime.arrivals import Arrivals
from trainer.runtime.group import Group
from trainer.runtime.preemption import PreemptionSignal
from trainer.runtime.progress import Progress
from trainer.runtime.seeds import derive_seed, seed_everything
from trainer.runtime.signals import Flag, Signals
from trainer.tasks.load import load_task
from trainer.tasks.loss_mean import LossMean


class Trainer:
    """Training of one task on one group of ranks."""

    def __init__(self, config: TrainConfig, group: Group, progress: Progress, preemption: PreemptionSignal) -> None:
        self.config, self.group, self.progress, self.preemption = config, group, progress, preemption
        self.task = group.on_all(lambda: load_task(config))
        samples, data_digest, self.data_description = open_split(self.task, "train", group)
        self.batches = Batches(samples, self.task, config, group, split="train")
        self.samples_per_step = config.micro_batch * config.accumulation * group.rank.world_size
        validation = open_split(self.task, "validation", group)[0]
        self.evaluation = Evaluation(self.task, validation, config, group, progress=progress)
        self.checkpoints = Checkpoints.open(group, config, data_digest)
        self.metrics = MetricsHub(group, config, self.checkpoints.out, self.task.tokens_per_sample)
        # Model (parallel/building.py) with activation checkpointing and compile, in DDP, FSDP2 on a 1-D mesh
        # (parallel/fsdp.py) or ZeRO; AdamW (optim/adamw.py).
        self.strategy = build_strategy(group, config, self.task, self.checkpoints.out)
        seed_everything(derive_seed(config.seed, "rank", group.rank.global_rank), group.accelerator)
        self.checkpoints = self.checkpoints.for_model(self.strategy)
        self.saver = Saver(self.checkpoints, self.strategy, progress, self.metrics.flush)
        self.roll_back = RollBack(self.checkpoints, self.saver, self.strategy)
        self.loss_mean = LossMean(self.task, group)
        self.signals = Signals(group)
        self.replicas = Replicas(
            self.strategy.replicated, world_size=group.rank.world_size, every=config.fingerprint_steps
        )
        self.arrivals = Arrivals()
        self.skips = Skips(scales_loss=config.precision == "fp16")

    def run(self) -> Summary | None:
        """
        Train to the last step; the progress file says done before this returns. Raises TrainerError.

        Returns:
            None if preempted before the last step: everything is saved, and another attempt can continue from there.
        """
        started = time.perf_counter()
        sizes, work_per_step = self.strategy.sizes, self.metrics.work_per_step
        announce(self.group, self.config, sizes=sizes, data=self.data_description, work_per_step=work_per_step)
        self.progress.reached("restore")
        self.progress.write("init", 0)  # loading a checkpoint has the whole time limit
        state = self._resume()
        while state.step < self.config.steps:
            self.progress.write("step", state.step)
            try:
                result, flags = self._step(state.step + 1)
            except NumbersError as exc:
                self.progress.write("init", state.step)  # the other ranks wait while rank 0 reads a checkpoint
                state = self.roll_back.after(exc, state, self.samples_per_step)
                self._begin(state)
                continue
            tokens, samples, skipped = self.metrics.per_step, self.samples_per_step, self.skips.in_a_row
            planned = self.schedule.steps
            state = state.after_step(
                result.loss, tokens=tokens, samples=samples, skipped=skipped, planned_steps=planned
            )
            is_preempted = bool(flags & Flag.PREEMPTED)
            is_last = is_preempted or state.step == self.config.steps
            # After a preemption signal there is time for a save only.
            evaluated = {} if is_preempted else self.evaluation.after_step(state.step, self.strategy, last=is_last)
            self.metrics.add(state.step, result, evaluated, last=is_last)
            self.saver.after_step(state, flags, evaluated, last=is_last)
            if is_preempted:
                break
        return self._finish(state, time.perf_counter() - started)

    def _resume(self) -> TrainState:
        """Load the checkpoint to continue from, if any, and prepare the first step."""
        state = self.checkpoints.resume(self.strategy)
        if self.config.init and state.step == 0:
            load_initial(Path(self.config.init).expanduser(), self.strategy, self.task, self.group)
        self.checkpoints.check_space(self.strategy.sizes, state.step)
        self.progress.reached("restored")
        self.progress.write("init", state.step, saved=state.step, resumed=state.step)
        self.strategy.warm_up(self.group.on_all(self.batches.peek))
        self._begin(state)
        return state

    def _begin(self, state: TrainState) -> None:
        """Start the learning rate, the metrics and the data at a loaded state."""
        self.schedule, change = Schedule.plan(self.config, state.step, state.planned_steps)
        if change and self.group.rank.is_main:
            log_line(change)
        self.metrics.begin(state.step, self.task.flops_per_sample(self.strategy.sizes))
        self.batches.begin(state.position)
        self.skips.reset(state.skipped)

    def _step(self, step: int) -> Tuple[StepResult, Flag]:
        """Make one optimizer step. Raises NumbersError, the same on all ranks: it, or the step before, made no update on some rank."""
        started, config = time.perf_counter(), self.config
        lr = self.schedule.rate(step)
        total = torch.zeros((), device=self.group.device)
        waited_before_s = self.batches.waited_s
        batches = (self.batches.next() for _ in range(config.accumulation))
        for micro, (batch, factor) in enumerate(self.loss_mean.with_factor(batches)):
            last = micro == config.accumulation - 1
            with self.strategy.micro_batch(last=last):
                loss = self.strategy.forward(batch)
                loss = loss if factor is None else loss * factor
                total = total + loss.detach() / config.accumulation
                if last:
                    self.signals.send(total, self._flags(step), self.skips.norm)
                self.strategy.backward(loss)
        received = self.signals.receive()
        self.skips.check(received.flags, received.norms)
        check_finite("loss", received.losses, step)
        self.progress.extra.update(self.arrivals.after_sync(step, self.group.rank.world_size))
        norm = self.strategy.update(lr, total)
        self.skips.add(step, norm)
        is_last = step == self.config.steps
        found = self.replicas.after_step(step, norm, roll_backs=self.roll_back.count, last=is_last)
        self.progress.extra.update(found)  # written with the next phase
        self._check_before_save(step, received.union, total)
        self.group.accelerator.synchronize()
        waited_s = self.batches.waited_s - waited_before_s
        return StepResult(received.losses, lr, norm, time.perf_counter() - started, waited_s), received.union

    def _flags(self, step: int) -> Flag:
        preempted = Flag.PREEMPTED if self.preemption.is_received else Flag.NONE
        return preempted | self.saver.poll(step) | self.skips.flag()

    def _check_before_save(self, step: int, flags: Flag, loss: torch.Tensor) -> None:
        """Judge the update just made if a checkpoint follows; otherwise the flags of the next step do it."""
        is_final = step == self.config.steps
        if is_final or flags & Flag.PREEMPTED or self.saver.is_due(step, flags):
            self.signals.send(loss, self.skips.flag(), self.skips.norm)
            received = self.signals.receive()
            self.skips.check(received.flags, received.norms, final=is_final)

    def _finish(self, state: TrainState, wall_s: float) -> Summary | None:
        """Write the last phase before any teardown, so that a crash at exit does not fail the run."""
        is_main = self.group.rank.is_main
        if state.step < self.config.steps:
            if is_main:
                log_line(f"preempted: saved at step {state.step}, to be restarted (exit code {REQUEUE})")
            self.progress.write("saved", state.step)
            return None
        path, totals = self.checkpoints.path(state.step), self.metrics.totals()
        summary = Summary(state.step, state.first_loss, state.last_loss, wall_s, str(path), **totals)
        if is_main:
            log_line(summary.line())
        self.progress.write("done", state.step, **({"summary": summary.record()} if is_main else {}))
        self.metrics.finish(summary)
        return summary
