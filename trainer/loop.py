"""The training itself: build, resume, step, log, save. One Trainer a process."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List, Tuple

import torch

from trainer.accelerators import Accelerator
from trainer.checkpoint.code import code_version
from trainer.checkpoint.run import Checkpoints, TrainState
from trainer.checkpoint.saver import Saver
from trainer.config import TrainConfig
from trainer.data import digest, load_text, offsets
from trainer.distributed import Group, Told
from trainer.errors import REQUEUE, NumbersError, UserError
from trainer.finite import check_finite
from trainer.flops import flops_per_token
from trainer.measures import Measures
from trainer.metrics import StepResult, Summary
from trainer.model import GPT
from trainer.notice import Notice
from trainer.place import Place, Progress, say
from trainer.roll_back import RollBack
from trainer.roll_call import fold
from trainer.strategies import choose_strategy
from trainer.strategies.base import ignored
from trainer.strategies.recompute import recompute

FLOOR = 0.1  # of lr, where the cosine ends


class Trainer:
    """Training of the GPT on one group of ranks."""

    def __init__(self, config: TrainConfig, group: Group, progress: Progress, notice: Notice) -> None:
        self.config, self.group, self.progress, self.notice = config, group, progress, notice
        self.rank = group.place.rank
        self.text = torch.frombuffer(bytearray(self._load_text()), dtype=torch.uint8)
        run_dir = group.place.run_dir
        out = Path(config.out).expanduser() if config.out else (run_dir / "checkpoints" if run_dir else Path("out"))
        code = code_version(Path(__file__).parent, Path.cwd()) if self.group.place.is_main else None
        self.checkpoints = Checkpoints(group, config, out.absolute(), self.data_digest, code=code)
        self.checkpoints.prepare()
        self.measures = Measures(group, config, self.checkpoints.out)
        torch.manual_seed(config.seed % 2**63)
        model = GPT(config.model, recompute(config)).to(group.device)  # before it is wrapped: DDP looks at where it is
        warn_if_on_cpu(model, group.accelerator, self.rank)
        self.parameter_count = sum(one.numel() for one in model.parameters())  # before it is split
        self.flops_per_token = flops_per_token(
            ((name, one.numel()) for name, one in model.named_parameters()), config.model
        )
        self.strategy = choose_strategy(group, config, model, self.checkpoints.out)
        self.saver = Saver(self.checkpoints, self.strategy, progress, self.measures.flush)
        self.roll_back = RollBack(self.checkpoints, self.saver, self.strategy)

    def run(self) -> Summary | None:
        """
        Train to the last step; the progress file says done before this returns. Raises TrainerError.

        Returns:
            None when the time was nearly up before: all is saved, and another attempt can go on from there.
        """
        started = time.perf_counter()
        self._announce()
        state = self.checkpoints.resume(self.strategy)
        self.checkpoints.check_space(self._checkpoint_bytes, state.step)
        self.progress.write("init", state.step, saved=state.step)
        self.strategy.settle(*self._batch(1, 0))
        self.measures.begin(state.step, self.flops_per_token)
        while state.step < self.config.steps:
            step = state.step + 1
            self.progress.write("step", state.step)
            try:
                result, told = self._step(step, state.skipped)
            except NumbersError as exc:
                state = self.roll_back.after(exc, state)
                self.measures.begin(state.step, self.flops_per_token)
                continue
            state = TrainState(
                step,
                state.tokens + self.measures.tokens_per_step,
                result.loss if state.first_loss is None else state.first_loss,
                result.loss,
                skipped=state.skipped,
            )
            is_last = step == self.config.steps or result.is_warned
            self.measures.add(step, result, last=is_last)
            self.saver.after(state, told, last=is_last)
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

    @property
    def _checkpoint_bytes(self) -> int:
        """About: weights and Adam's two moments in fp32; the state of a rank's random generators as text."""
        return 12 * self.parameter_count + 32_000 * self.group.place.world_size + 1_000_000

    def _load_text(self) -> bytes:
        """The text; a problem on any rank is an error on all of them, before anybody waits for a batch."""
        text, problem = b"", ""
        try:
            text = load_text(self.config.data.paths, self.config.model.context)
        except UserError as exc:
            problem = str(exc)
        self.group.agree(problem)
        self.data_digest = digest(text)
        found: Dict[str, List[int]] = {}
        for rank, one in enumerate(self.group.gather_bytes(self.data_digest.encode())):
            found.setdefault(one.decode(), []).append(rank)
        if len(found) > 1 and self.group.place.is_main:
            groups = "; ".join(f"{name[:12]} on rank {fold(ranks)}" for name, ranks in found.items())
            say(f"WARNING: the ranks read different text ({groups}); losses will not repeat on other nodes")
        return text

    def _announce(self) -> None:
        place, config = self.group.place, self.config
        if not place.is_main:
            self.progress.write("init", 0)
            say(f"rank {place.rank} ready, device {self.group.device}")
            return
        self.progress.write("init", 0, ready=self.group.ready)
        say(self.group.ready)
        say(
            f"model {self.parameter_count} parameters, text {len(self.text)} bytes sha256 {self.data_digest[:12]}, "
            f"{self.measures.tokens_per_step} tokens a step, {config.steps} steps, {config.precision}, {config.strategy}"
        )
        say(batch_arithmetic(config, place))

    def _step(self, step: int, skipped: int) -> Tuple[StepResult, Told]:
        started, waited_s, config = time.perf_counter(), 0.0, self.config
        lr = learning_rate(step, config.steps, config.lr, config.optim.warmup_steps)
        total, gathered = torch.zeros((), device=self.group.device), []

        def gather(share: torch.Tensor) -> None:
            """Of the last micro batch: while its gradient is computed, the ranks hear of each other's loss."""
            mine = self.saver.tell(step) | (Told.WARNED if self.notice.is_given else Told.NOTHING)
            gathered.append(self.group.gather_float(total + share, mine))

        for micro in range(config.accumulation):
            asked = time.perf_counter()
            batch = self._batch(step + skipped, micro)
            waited_s += time.perf_counter() - asked
            last = micro == config.accumulation - 1
            total = total + self.strategy.backward(*batch, last=last, seen=gather if last else ignored)
        losses, told = gathered[0]()
        check_finite("loss", losses, step)
        norm = self.strategy.update(step, lr, total)
        self.group.accelerator.synchronize()
        seconds = time.perf_counter() - started
        return StepResult(losses, lr, norm, seconds, bool(told & Told.WARNED), waited_s), told

    def _batch(self, step: int, micro: int) -> Tuple[torch.Tensor, torch.Tensor]:
        """One micro batch of this rank and the bytes that follow; both [batch, length]."""
        config, context = self.config, self.config.model.context
        starts = offsets(
            config.seed, step, self.rank, micro, count=config.micro_batch, text_bytes=len(self.text), context=context
        )
        rows = torch.stack([self.text[start : start + context + 1] for start in starts]).long().to(self.group.device)
        return rows[:, :-1], rows[:, 1:]

    def _leave(self, step: int) -> None:
        """End before the last step, with all saved."""
        if self.group.place.is_main:
            say(f"told that the time is nearly up: saved at step {step}, to be started again (exit code {REQUEUE})")
        self.progress.write("saved", step)

    def _finish(self, summary: Summary) -> None:
        """Mark the work as done before anything is torn down: a crash on exit is then no failed run."""
        if self.group.place.is_main:
            say(summary.line())
            self.progress.write("done", summary.steps, summary=summary.record())
        else:
            self.progress.write("done", summary.steps)


def batch_arithmetic(config: TrainConfig, place: Place) -> str:
    """The effective batch, and what it is the product of."""
    per_node, rest = divmod(place.world_size, place.nodes)
    ranks = f"ranks {place.world_size}" if rest else f"devices {per_node} x nodes {place.nodes}"
    effective = config.micro_batch * place.world_size * config.accumulation
    return f"batch {effective} = micro_batch {config.micro_batch} x {ranks} x accumulation {config.accumulation}"


def learning_rate(step: int, steps: int, peak: float, warmup_steps: int) -> float:
    """Straight up to `peak` over the warm-up, then half a cosine down to a tenth of it; steps count from 1."""
    if step <= warmup_steps:
        return peak * step / warmup_steps
    share = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * share)))


def warn_if_on_cpu(
    model: torch.nn.Module, accelerator: Accelerator, rank: int, write: Callable[[str], object] = sys.stderr.write
) -> None:
    """Training would go on, slowly and on the wrong device, so say it loudly."""
    left = [name for name, one in model.named_parameters() if one.device.type == "cpu"]
    if accelerator.name != "cpu" and left:
        write(
            f"WARNING: rank {rank}: {len(left)} parameters are on the CPU although {accelerator.name} was asked for "
            f"(first: {left[0]}); this rank would train on the CPU\n"
        )
