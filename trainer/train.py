"""The training itself: build, resume, step, log, save. One Trainer a process."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Tuple

import torch

from trainer.checkpoint.code import code_version
from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.checkpoint.roll_back import RollBack
from trainer.checkpoint.saver import Saver
from trainer.config.config import TrainConfig
from trainer.console import say
from trainer.data.batches import Batches
from trainer.data.split import open_split
from trainer.errors import REQUEUE, NumbersError, UserError
from trainer.evaluation import Evaluation
from trainer.metrics.hub import Measures
from trainer.metrics.jsonl import StepResult, Summary
from trainer.optim.schedule import learning_rate
from trainer.parallel import choose_strategy
from trainer.parallel.checks import Skips, check_finite
from trainer.runtime.group import Group
from trainer.runtime.preemption import PreemptionSignal
from trainer.runtime.progress import Progress
from trainer.runtime.rank import Rank
from trainer.runtime.seeds import derive_seed, determinism_warning, seed_everything
from trainer.runtime.signals import Flag, Signals
from trainer.tasks import Task
from trainer.tasks.load import load_task


class Trainer:
    """Training of one task on one group of ranks."""

    def __init__(self, config: TrainConfig, group: Group, progress: Progress, preemption: PreemptionSignal) -> None:
        self.config, self.group, self.progress, self.preemption = config, group, progress, preemption
        self.rank = group.rank.global_rank
        self.task = self._task()
        samples, digest, self.about_data = open_split(self.task, "train", group)
        self.batches = Batches(samples, self.task, config, group, split="train")
        self.evaluation = Evaluation(self.task, open_split(self.task, "validation", group)[0], config, group)
        run_dir = group.rank.run_dir
        out = Path(config.out).expanduser() if config.out else (run_dir / "checkpoints" if run_dir else Path("out"))
        code = code_version(Path(__file__).parent, Path.cwd()) if self.group.rank.is_main else None
        self.checkpoints = Checkpoints(group, config, out.absolute(), digest, code=code)
        self.checkpoints.prepare()
        self.measures = Measures(group, config, self.checkpoints.out, self.task.tokens_per_sample)
        self.samples_per_step = config.micro_batch * config.accumulation * group.rank.world_size
        self.strategy = choose_strategy(group, config, self.task, self.checkpoints.out)
        seed_everything(derive_seed(config.seed, "rank", self.rank), group.accelerator)
        self.saver = Saver(self.checkpoints, self.strategy, progress, self.measures.flush)
        self.roll_back = RollBack(self.checkpoints, self.saver, self.strategy)
        self.signals = Signals(group)
        self.skips = Skips(scales_loss=config.precision == "fp16")

    def run(self) -> Summary | None:
        """
        Train to the last step; the progress file says done before this returns. Raises TrainerError.

        Returns:
            None when the time was nearly up before: all is saved, and another attempt can go on from there.
        """
        started = time.perf_counter()
        self._announce()
        state = self._begin()
        while state.step < self.config.steps:
            step = state.step + 1
            self.progress.write("step", state.step)
            try:
                result, flags = self._step(step)
            except NumbersError as exc:
                self.progress.write("init", state.step)  # the others wait while rank 0 reads a checkpoint
                state = self.roll_back.after(exc, state, self.samples_per_step)
                self._go_on_from(state)
                continue
            state = TrainState(
                step,
                state.tokens + self.measures.per_step,
                result.loss if state.first_loss is None else state.first_loss,
                result.loss,
                position=state.position + self.samples_per_step,
            )
            is_last = step == self.config.steps or result.is_warned
            # Once warned, there is time to save alone.
            due = self.evaluation.is_due(step, last=is_last) and not result.is_warned
            evaluated = self._evaluated(step) if due else {}
            self.measures.add(step, result, evaluated, last=is_last)
            eval_loss = evaluated.get("eval_loss") if self.config.eval_steps else None
            self.saver.after(replace(state, eval_loss=eval_loss), flags, last=is_last)
            if is_last:
                break
        if state.step < self.config.steps:
            self._leave(state.step)
            return None
        wall_s = time.perf_counter() - started
        summary = Summary(
            state.step,
            state.first_loss,
            state.last_loss,
            wall_s=wall_s,
            checkpoint=str(self.checkpoints.path(state.step)),
            **self.measures.totals(),
        )
        self._finish(summary)
        return summary

    def _begin(self) -> TrainState:
        """Where the last attempt stopped, or at step 0."""
        state = self.checkpoints.resume(self.strategy)
        self.checkpoints.check_space(self._checkpoint_bytes, state.step)
        self.progress.write("init", state.step, saved=state.step)
        self.strategy.warm_up(self._some_batch())
        self._go_on_from(state)
        return state

    def _go_on_from(self, state: TrainState) -> None:
        self.measures.begin(state.step, self.task.flops_per_sample(self.strategy.sizes))
        self.batches.begin(state.position)
        self.skips.reset()

    @property
    def _checkpoint_bytes(self) -> int:
        """About: weights and Adam's two moments in fp32; the state of a rank's random generators as text."""
        return 12 * sum(self.strategy.sizes.values()) + 32_000 * self.group.rank.world_size + 1_000_000

    def _task(self) -> Task:
        """A problem on any rank is an error on all of them."""
        task, problem = None, ""
        try:
            task = load_task(self.config)
        except UserError as exc:
            problem = str(exc)
        self.group.agree(problem)
        assert task is not None  # a rank with a problem did not get past the agreement
        return task

    def _some_batch(self) -> Any:  # noqa: ANN401 -- as the task makes it
        """Where the samples are wrong throughout, all ranks say so at once."""
        batch, problem = None, ""
        try:
            batch = self.batches.one()
        except UserError as exc:
            problem = str(exc)
        self.group.agree(problem)
        return batch

    def _evaluated(self, step: int) -> Dict[str, float]:
        self.progress.write("eval", step)
        return self.evaluation.run(step, self.strategy)

    def _announce(self) -> None:
        rank, config = self.group.rank, self.config
        if not rank.is_main:
            self.progress.write("init", 0)
            say(self.group.greeting)
            return
        self.progress.write("init", 0, ready=self.group.ready)
        say(self.group.ready)
        say(
            f"model {sum(self.strategy.sizes.values())} parameters, {self.about_data}, {self.measures.per_step} "
            f"{self.measures.unit} a step, {config.steps} steps, {config.precision}, {config.strategy}"
        )
        if determinism_warning(config, self.group.accelerator.name):
            say(determinism_warning(config, self.group.accelerator.name))
        say(batch_arithmetic(config, rank))

    def _step(self, step: int) -> Tuple[StepResult, Flag]:
        started, waited_s, config = time.perf_counter(), 0.0, self.config
        lr = learning_rate(step, config.steps, config.lr, config.optim.warmup_steps)
        total = torch.zeros((), device=self.group.device)
        for micro in range(config.accumulation):
            asked = time.perf_counter()
            batch = self.batches.next()
            waited_s += time.perf_counter() - asked
            last = micro == config.accumulation - 1
            with self.strategy.micro_batch(last=last):
                loss = self.strategy.forward(batch)
                total = total + loss.detach() / config.accumulation
                if last:
                    self.signals.send(total, self._flags(step))
                self.strategy.backward(loss)
        received = self.signals.receive()
        self.skips.check(received.flags)
        check_finite("loss", received.losses, step)
        norm = self.strategy.update(lr, total)
        self.skips.add(step, norm)
        flags, is_final = received.union, step == config.steps
        if is_final or flags & Flag.PREEMPTED or self.saver.acts(step, flags):
            self._check_update(total, final=is_final)
        self.group.accelerator.synchronize()
        seconds = time.perf_counter() - started
        return StepResult(received.losses, lr, norm, seconds, bool(flags & Flag.PREEMPTED), waited_s), flags

    def _flags(self, step: int) -> Flag:
        preempted = Flag.PREEMPTED if self.preemption.is_received else Flag.NONE
        return preempted | self.saver.flags(step) | self.skips.flag()

    def _check_update(self, loss: torch.Tensor, *, final: bool) -> None:
        """Judge the update just made before it is saved, not with the flags of the next step."""
        self.signals.send(loss, self.skips.flag())
        self.skips.check(self.signals.receive().flags, final=final)

    def _leave(self, step: int) -> None:
        """End before the last step, with all saved."""
        if self.group.rank.is_main:
            say(f"told that the time is nearly up: saved at step {step}, to be started again (exit code {REQUEUE})")
        self.progress.write("saved", step)

    def _finish(self, summary: Summary) -> None:
        """Mark the work as done before anything is torn down: a crash on exit is then no failed run."""
        if self.group.rank.is_main:
            say(summary.line())
            self.progress.write("done", summary.steps, summary=summary.record())
            self.measures.finish(summary)
        else:
            self.progress.write("done", summary.steps)


def batch_arithmetic(config: TrainConfig, rank: Rank) -> str:
    """The effective batch, and what it is the product of."""
    per_node, rest = divmod(rank.world_size, rank.nodes)
    ranks = f"ranks {rank.world_size}" if rest else f"devices {per_node} x nodes {rank.nodes}"
    effective = config.micro_batch * rank.world_size * config.accumulation
    return f"batch {effective} = micro_batch {config.micro_batch} x {ranks} x accumulation {config.accumulation}"
