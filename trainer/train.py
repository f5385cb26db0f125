"""The training: data, checkpoints, model on all ranks, and the loop over steps. One Trainer per process."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Mapping

import torch

from trainer.announce import announce, announce_attention, announce_memory
from trainer.checkpoint.interop.initial import load_initial
from trainer.checkpoint.load.find import saved_settings
from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.checkpoint.roll_back import RollBack
from trainer.checkpoint.saver import Saver
from trainer.config.config import TrainConfig
from trainer.config.defaults import Garbage
from trainer.config.load import with_saved
from trainer.console import log_line
from trainer.data.batches import Batches
from trainer.data.split import open_split
from trainer.errors import REQUEUE, DeviceError, NumbersError, UserError
from trainer.evaluation import Evaluation
from trainer.io import replace_text
from trainer.metrics.hub import MetricsHub
from trainer.metrics.jsonl import StepResult, Summary, digits
from trainer.metrics.profiler import StepProfiler, watch_memory
from trainer.optim.schedule import Schedule
from trainer.outcomes import Outcomes
from trainer.parallel import build_strategy
from trainer.parallel.replicas import Replicas
from trainer.runtime.arrivals import Arrivals
from trainer.runtime.group import Group
from trainer.runtime.preemption import PreemptionSignal
from trainer.runtime.progress import Progress
from trainer.runtime.seeds import derive_seed, seed_everything
from trainer.runtime.signals import Flag
from trainer.tasks.base import writes_no_files
from trainer.tasks.load import load_task
from trainer.tasks.lora import frozen_weights
from trainer.tasks.loss_mean import LossMean
from trainer.trial import Trial


class Trainer:
    """Training of one task on one group of ranks."""

    def __init__(self, config: TrainConfig, group: Group, progress: Progress, preemption: PreemptionSignal) -> None:
        saved = saved_settings(group, config)
        config = with_saved(config, saved or {})
        self.config, self.group, self.progress, self.preemption = config, group, progress, preemption
        self.task = group.on_all(lambda: load_task(config))
        self.task.weights_are_loaded = saved is not None
        split = "validation" if config.evaluate_only else "train"
        samples, digest, self.data_description = open_split(self.task, split, group)
        if samples is None:
            raise UserError.agreed("evaluate_only=true: there are no validation samples: set data.validation")
        self.batches = Batches(samples, self.task, config, group, split=split)
        self.samples_per_step = config.micro_batch * config.accumulation * group.rank.world_size
        validation = samples if config.evaluate_only else open_split(self.task, "validation", group)[0]
        self.evaluation = Evaluation(self.task, validation, config, group, progress=progress)
        if config.patience and validation is None:
            raise UserError.agreed(f"patience={config.patience}: there are no validation samples: set data.validation")
        self.checkpoints = Checkpoints.open(group, config, None if config.evaluate_only else digest)
        self.metrics = MetricsHub(group, config, self.checkpoints.out, self.task.tokens_per_sample)
        # Model (parallel/building.py) with activation checkpointing and compile, in DDP, FSDP2 on a 1-D mesh
        # (parallel/fsdp.py) or ZeRO; the optimizer (optim/optimizer.py).
        self.strategy = build_strategy(group, config, self.task, self.checkpoints.out)
        seed_everything(derive_seed(config.seed, "rank", group.rank.global_rank), group.accelerator)
        self.checkpoints = self.checkpoints.for_model(self.strategy)
        self.saver = Saver(self.checkpoints, self.strategy, progress, self.metrics.flush)
        self.roll_back = RollBack(self.checkpoints, self.saver, self.strategy)
        self.trial = Trial(group, self.task, self.batches, self.strategy)
        self.loss_mean = LossMean(self.task, group)
        self.replicas = Replicas(
            self.strategy.replicated,
            group.accelerator.start_reading,
            world_size=group.rank.world_size,
            every=config.fingerprint_steps,
        )
        self.arrivals = Arrivals()
        self.profiler = StepProfiler(group, config, self.checkpoints.out)
        watch_memory(group, self.checkpoints.out)
        self.is_preempted = False

    def run(self) -> Summary | None:
        """
        Train to the last step; the progress file says done before this returns. Raises TrainerError.

        Returns:
            None if preempted before the last step: everything is saved, and another attempt can continue from there.
        """
        started = time.perf_counter()
        sizes, work_per_step = self.strategy.sizes, self.metrics.work_per_step
        frozen = sum(weight.numel() for weight in frozen_weights(self.strategy.unwrapped_model).values())
        data = f"{self.data_description}, {work_per_step} a step"
        announce(self.group, self.config, sizes=sizes, frozen=frozen, data=data)
        if not self.config.evaluate_only:
            announce_memory(self.group, self.config, sum(sizes.values()))
        self.progress.reached("restore")
        # loading a checkpoint has the whole time limit
        # The next attempt need not wait for ranks of this one on a node that was cut off: without rank 0, no step, checkpoint or
        # record of metrics is complete, and they write nothing that it reads or writes. Alone they write only their shards, to a
        # folder of their attempt, their progress, logs and traces, to that of their node, and states in its memory. DeepSpeed may
        # write what the user's configuration file demands.
        restart_at_once = writes_no_files(self.task) and not self.config.deepspeed
        self.progress.write(
            "init", 0, restart_at_once=restart_at_once, per_step=self.metrics.per_step, unit=self.metrics.unit
        )
        state = self._resume()
        if self.config.evaluate_only:
            return self._evaluate(state, started)
        garbage = Garbage()
        with garbage.held():
            while self._is_left(state) and not self.is_preempted:
                self.progress.write("step", state.step)
                self.profiler.before_step(state.step + 1)
                try:
                    state = self._advance(state)
                except NumbersError as exc:
                    self.progress.write("init", state.step)  # the other ranks wait while rank 0 reads a checkpoint
                    state = self._after_failure(exc, state)
                    self._begin(state)
                else:
                    self.profiler.after_step(state.step)
                    garbage.after_step(state.step)
        return self._finish(state, time.perf_counter() - started)

    def _resume(self) -> TrainState:
        """Load the checkpoint to continue from, if any, and prepare the first step, if there is to be one."""
        state = self.checkpoints.resume(self.strategy)
        assert state.step or not self.task.weights_are_loaded, "a checkpoint that was there is loaded, or an error"
        if self.config.init and (state.step == 0 or self.config.lora.rank):  # checkpoints hold the adapters only
            load_initial(Path(self.config.init).expanduser(), self.strategy, self.task, self.group)
        if not self.config.evaluate_only:
            self.checkpoints.check_space(self.strategy.sizes, state.step)
        self.progress.reached("restored")
        self.progress.write("init", state.step, saved=state.step, resumed=state.step)
        if self.config.evaluate_only:
            return state
        batch = self.group.on_all(self.batches.peek)
        announce_attention(self.group, self.config, self.task.attention(batch))
        self.strategy.warm_up(batch)
        self._begin(state)
        return state

    def _begin(self, state: TrainState) -> None:
        """Start the learning rate, the metrics and the data at a loaded state."""
        self.schedule, change = Schedule.plan(self.config, state.step, state.planned_steps)
        warnings = [change, self.schedule.warning() if state.step < self.config.steps else ""]
        for text in filter(None, warnings if self.group.rank.is_main else ()):
            log_line(text)
        self.metrics.begin(state.step, self.task.flops_per_sample(self.strategy.sizes))
        self.batches.begin(state.position)
        self.evaluation.begin()
        self.outcomes = Outcomes(self.group, scales_loss=self.config.precision == "fp16", skipped=state.skipped)

    def _advance(self, state: TrainState) -> TrainState:
        """
        Make one optimizer step, and what follows it: records of the step before, an evaluation, a save.

        Raises:
            NumbersError: the same on all ranks; an earlier step, or this one if something follows it, made no update on some rank.
        """
        step = state.step + 1
        before = self._step(step)
        if before:
            state = self._record(state, before, {}, last=False)
        state = state.after_step(
            tokens=self.metrics.per_step, samples=self.samples_per_step, planned_steps=self.schedule.steps
        )
        flags = self.outcomes.flags  # of the step before
        self.is_preempted = is_preempted = bool(flags & Flag.PREEMPTED)
        is_last = is_preempted or step == self.config.steps
        # After a preemption signal there is time for a save only.
        evaluates = not is_preempted and self.evaluation.is_due(step, last=is_last)
        saves = is_last or self.saver.needs_check(step, flags)
        trained = self.evaluation.training_metrics(step, last=is_last)
        evaluated: Mapping[str, float] = {}
        if trained or evaluates or saves:
            result = self.outcomes.settle(final=step == self.config.steps)
            evaluated = self.evaluation.after_step(step, self.strategy, last=is_last) if evaluates else {}
            state = self._with_evaluation(state, evaluated)
            is_last = is_last or not self._is_left(state)
            state = self._record(state, result, {**trained, **evaluated}, last=is_last)
        self.saver.after_step(state, flags, evaluated, last=is_last)
        if saves and not is_last:
            known = self.saver.known_flags(step + 1)
            if known is None:
                self.outcomes.exchange(self._flags(step + 1))
            else:
                self.outcomes.flags = known
        return state

    def _after_failure(self, error: NumbersError, state: TrainState) -> TrainState:
        """
        Repeat the step that failed, and roll back; `state` is that before the step in which this was found.

        Raises:
            DeviceError: on the ranks whose device computes wrongly; the other ranks wait for their end.
            NumbersError: there is no checkpoint to return to, or no roll-back is left.
        """
        end = state.position + (error.step - state.step) * self.samples_per_step
        begin = end - self.samples_per_step
        verdict = self.trial.after(error, begin)
        found = error if verdict is None else self.trial.error(error, verdict, begin)
        is_over = verdict is None or verdict.is_repeated
        try:
            if isinstance(found, DeviceError) and is_over:
                raise found
            return self.roll_back.after(found, end if is_over else None, self.samples_per_step)
        except DeviceError as exc:
            if self.group.rank.global_rank not in exc.ranks:
                self.group.gather_bytes(b"")
            raise

    def _step(self, step: int) -> StepResult | None:
        """Make one optimizer step; returns the result of the step before, unless it is known. Raises NumbersError as _advance() does."""
        config, lr = self.config, self.schedule.rate(step)
        self.outcomes.begin()
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
                    self.outcomes.send(total, self._flags(step + 1))
                self.strategy.backward(loss)
            self.batches.prepare()

        def update(is_good: torch.Tensor) -> torch.Tensor:
            self.progress.keep(self.arrivals.after_sync(step, self.group.rank.world_size))
            return self.strategy.update(lr, total, is_good=is_good)

        waited_s = self.batches.waited_s - waited_before_s
        before = self.outcomes.update(step, update, lr=lr, waited_s=waited_s)
        self.replicas.after_step(step, last=step == config.steps)
        return before

    def _is_left(self, state: TrainState) -> bool:
        """A step is left to make: neither are all made, nor has patience ended."""
        return state.step < self.config.steps and not self._has_stopped(state)

    def _has_stopped(self, state: TrainState) -> bool:
        return self.config.patience is not None and state.stale_evaluations >= self.config.patience

    def _with_evaluation(self, state: TrainState, evaluated: Mapping[str, float]) -> TrainState:
        """With patience=, count an evaluation, if there is one. Raises UserError: it has no loss."""
        if self.config.patience is None or not evaluated:
            return state
        if "eval_loss" not in evaluated:
            raise UserError.agreed(
                f"patience={self.config.patience}: evaluate() of task={self.config.task} gave no loss, but {', '.join(evaluated)}"
            )
        return state.with_evaluation(evaluated["eval_loss"])

    def _flags(self, step: int) -> Flag:
        """This rank's flags for the end of `step`."""
        return (Flag.PREEMPTED if self.preemption.is_received else Flag.NONE) | self.saver.poll(step)

    def _record(
        self, state: TrainState, result: StepResult, evaluated: Mapping[str, float], *, last: bool
    ) -> TrainState:
        """Report the numbers of the step that `state` follows; returns the state with its loss."""
        measured = self.metrics.add(
            state.step, result, evaluated, total=state.tokens, last=last, eta_s=self.progress.eta_s(state.step)
        )
        self.saver.add_loss(result.loss)
        loss = {"loss": result.loss} if math.isfinite(result.loss) else {}
        self.progress.keep(
            {**loss, **measured, **self.replicas.read(state.step, result.grad_norm, roll_backs=self.roll_back.count)}
        )
        return state.with_loss(result.loss, skipped=self.outcomes.skips.in_a_row)

    def _evaluate(self, state: TrainState, started: float) -> Summary:
        """Evaluate the weights on all validation samples, train nothing, and write evaluation.json."""
        config, is_main = self.config, self.group.rank.is_main
        if state.step == 0 and not config.init:
            raise UserError.agreed(
                f"evaluate_only=true: there is no checkpoint in {self.checkpoints.out}: name weights by init= or resume="
            )
        self.progress.write("eval", state.step)
        values = self.evaluation.on_all_samples(state.step, self.strategy)
        path = self.checkpoints.path(state.step) if state.step else config.init
        summary = Summary(state.step, state.first_loss, state.last_loss, time.perf_counter() - started, str(path))
        if is_main:
            replace_text(
                self.checkpoints.out / "evaluation.json", json.dumps({"step": state.step, **values}, indent=1) + "\n"
            )
        self.progress.write("done", state.step, **({"summary": {**summary.record(), **values}} if is_main else {}))
        return summary

    def _finish(self, state: TrainState, wall_s: float) -> Summary | None:
        """Write the last phase before any teardown, so that a crash at exit does not fail the run."""
        is_main = self.group.rank.is_main
        if self._is_left(state):
            if is_main:
                log_line(f"preempted: saved at step {state.step}, to be restarted (exit code {REQUEUE})")
            self.progress.write("saved", state.step)
            return None
        path, totals = self.checkpoints.path(state.step), self.metrics.totals()
        slowest = self.arrivals.slowest(self.group.gather_bytes)
        summary = Summary(
            state.step,
            state.first_loss,
            state.last_loss,
            wall_s,
            str(path),
            **totals,
            **self.metrics.total_work(state.tokens),
        )
        if is_main:
            if self._has_stopped(state):
                log_line(
                    f"stopped at step {state.step}: patience={self.config.patience} evaluations without an eval_loss below "
                    f"{digits(state.best_eval_loss)}"
                )
            if slowest:
                log_line(slowest)
            log_line(summary.line())
        self.progress.write("done", state.step, **({"summary": summary.record()} if is_main else {}))
        self.metrics.finish(summary)
        return summary
