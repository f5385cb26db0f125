"""
60 faults in one training of four ranks on two nodes, by tests/train/test_trial.py: each step that fails is repeated, and judged.

Faults of devices set all exponent bits of aligned groups of 32 values, as those of a defective warp would be, or of the whole tensor.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.grounds.tasks import Points
from tests.grounds.trainings import NO_PREEMPTION
from trainer.checkpoint.manager import TrainState
from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.errors import NumbersError
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.train import Trainer
from trainer.trial import Verdict

RANKS, STEPS = 4, 4  # ranks; the most steps until a fault shows
EXPONENT = 0x7F800000
WARP = 32
PATTERNS: dict[str, slice] = {"first warp": slice(0, WARP), "last warp": slice(-WARP, None), "all": slice(None)}


class Wide(Points):
    """Points with layers of several warps."""

    def build_model(self) -> nn.Module:
        return Net()


class Net(nn.Module):
    """Two layers; `both` is that of Points."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 2 * WARP), nn.Linear(2 * WARP, 1)
        self.norm = nn.BatchNorm1d(2 * WARP)

    def forward(self, points: torch.Tensor, *, both: bool) -> torch.Tensor:
        last: torch.Tensor = self.last(torch.tanh(self.norm(self.first(points))))
        return last


class Corrupted(torch.autograd.Function):
    """The values, or their gradient, with all exponent bits of the elements of a pattern set."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, elements: slice, backwards: bool) -> torch.Tensor:
        ctx.elements, ctx.backwards = elements, backwards
        return values.clone() if backwards else corrupt(values.clone(), elements)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return corrupt(gradient.clone(), ctx.elements) if ctx.backwards else gradient, None, None


def corrupt(values: torch.Tensor, elements: slice) -> torch.Tensor:
    values.view(-1).view(torch.int32)[elements] |= EXPONENT
    return values


@dataclass(frozen=True)
class Fault:
    """
    kind: data, code, activation, gradient, weight, norm or all.
    ranks: of the batch or of the devices.
    times: how often the device computes wrongly; -1 for every second time, 0 for always.
    """

    kind: str
    ranks: tuple[int, ...]
    pattern: str = "all"
    times: int = 0

    def expected(self) -> Verdict:
        if self.kind in {"data", "code"}:
            return Verdict(batches=self.ranks)
        if self.kind == "all":
            return Verdict(batches=tuple(range(RANKS)))
        if self.kind == "norm":  # only the sum was wrong
            return Verdict(self.ranks, is_repeated=False)
        if self.times == 1:
            return Verdict(() if self.kind == "gradient" else self.ranks, is_repeated=False)
        return Verdict(self.ranks)


def faults() -> list[Fault]:
    each = range(RANKS)
    return [
        *(Fault(kind, (rank,)) for kind in ("data", "code") for rank in each),
        *(Fault("data", pair) for pair in ((0, 2), (1, 3), (0, 3), (1, 2))),
        *(Fault("activation", (rank,), pattern) for rank in each for pattern in PATTERNS),
        *(Fault("activation", (rank,), pattern, 1) for rank in each for pattern in ("first warp", "last warp")),
        *(Fault("activation", (rank,), "first warp", -1) for rank in each),
        *(Fault("gradient", (rank,), pattern) for rank in each for pattern in ("first warp", "all")),
        *(Fault("gradient", (rank,), "last warp", 1) for rank in each),
        *(Fault("weight", (rank,), pattern) for rank in each for pattern in ("first warp", "all")),
        *(Fault("norm", (rank,), times=1) for rank in (1, 2)),
        Fault("activation", (0, 1)),
        Fault("all", ()),
    ]


@contextlib.contextmanager
def injected(fault: Fault, trainer: Trainer, state: TrainState) -> Iterator[None]:
    """The fault from the next step on; afterwards all is as before."""
    rank, net = trainer.group.rank.global_rank, trainer.strategy.unwrapped_model
    calls = itertools.count()
    weights = {name: value.clone() for name, value in net.state_dict().items()}

    def acts() -> bool:
        call = next(calls)
        return rank in fault.ranks and (call < fault.times if fault.times > 0 else call % 2 == 0 or not fault.times)

    def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        wrong: torch.Tensor = Corrupted.apply(output, PATTERNS[fault.pattern], fault.kind == "gradient")  # type: ignore[no-untyped-call]
        return wrong if acts() else output

    tools: Any = torch.nn.utils
    samples, norm = trainer.batches.source.samples, tools.get_total_norm
    undo: Callable[[], object] = bool
    if fault.kind in {"data", "code"}:
        firsts = [state.position + owner * trainer.config.micro_batch for owner in fault.ranks]
        bad = {trainer.batches.source.order.sample(first) for first in firsts}
        points = [samples[index] for index in range(len(samples))]
        trainer.batches.source.samples = [
            (point * float("nan") if index in bad else point, target) for index, (point, target) in enumerate(points)
        ]
    elif fault.kind in {"activation", "gradient"}:
        undo = net.first.register_forward_hook(hook).remove  # type: ignore[union-attr]
    elif fault.kind == "norm":
        tools.get_total_norm = lambda gradients: norm(gradients) * (float("nan") if acts() else 1.0)
    elif rank in fault.ranks or fault.kind == "all":
        corrupt(net.first.weight.data, PATTERNS[fault.pattern])  # type: ignore[union-attr, arg-type]
    try:
        yield
    finally:
        undo()
        trainer.batches.source.samples, tools.get_total_norm = samples, norm
        net.load_state_dict(weights)


def _state_beside_weights(trainer: Trainer) -> list[torch.Tensor]:
    """The buffers and the state of the random numbers, which a trial leaves as they are."""
    return [*(buffer.clone() for buffer in trainer.strategy.unwrapped_model.buffers()), torch.get_rng_state()]


def verdict_on(trainer: Trainer, state: TrainState) -> tuple[Verdict | None, str, TrainState]:
    """Train until a step fails."""
    for _ in range(STEPS):
        try:
            state = trainer._advance(state)
        except NumbersError as error:
            begin = state.position + (error.step - state.step - 1) * trainer.samples_per_step
            before = _state_beside_weights(trainer)
            verdict = trainer.trial.after(error, begin)
            for was, now in zip(before, _state_beside_weights(trainer), strict=True):
                torch.testing.assert_close(now, was, rtol=0, atol=0, equal_nan=True)
            return verdict, str(trainer.trial.error(error, verdict, begin)) if verdict else str(error), state
    return None, "no step failed", state


def main() -> None:
    rank = int(os.environ["RANK"])
    os.environ["ORCH_NODE"] = f"n{rank // 2}"
    words = ["task=tests.train.trial_program:Wide", "micro_batch=2", "device=cpu", "report=", f"out={sys.argv[1]}"]
    config: TrainConfig = load_config(words=[*words, "steps=100000", "save_steps=100000", "lr=1e-4"])
    group = initialise("cpu", 60.0, os.environ)
    trainer = Trainer(config, group, Progress(group.rank, config.steps), NO_PREEMPTION)
    state = trainer._resume()
    for fault in faults():
        with injected(fault, trainer, state):
            trainer._begin(state)
            verdict, text, state = verdict_on(trainer, state)
        trainer.strategy.discard_gradients()
        if rank == 0:
            sys.stdout.write(json.dumps([str(fault), str(fault.expected()), str(verdict), text]) + "\n")
            sys.stdout.flush()
    group.close(0)


if __name__ == "__main__":
    main()
