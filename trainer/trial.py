"""
The trial after a step whose loss or gradient is wrong: is the device of a rank at fault, or the data and the code?

All ranks repeat the step without an update: first on their own batches, then each on the batches of another rank, on another node if
there is one. A batch that fails on both is at fault, or the code that computes with it. A rank that fails where the other does not has
a device that computes wrongly. If nothing fails again, the rank of the failure has computed wrongly once.

Weights are those after the failing step, which made no update; a later step may have changed them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import List, Sequence, Tuple

import torch

from trainer.console import log_line
from trainer.data.batches import Batches
from trainer.errors import DeviceError, NumbersError
from trainer.optim.clip import gradient_norm
from trainer.parallel.base import Strategy
from trainer.runtime.group import Group
from trainer.runtime.seeds import derive_seed, preserve_device_rng, seed_everything, seeded_rng
from trainer.tasks.base import Task, loss_of
from trainer.text import fold
from trainer.values import Batch

NAMED = 8  # samples in a message
Values = Sequence[float]


@dataclass(frozen=True)
class Verdict:
    """
    devices: the ranks whose device computes wrongly; empty if it is none, or unknown.
    is_repeated: the failure was seen again.
    batches: the ranks whose batch fails on each rank that has computed with it.
    """

    devices: Tuple[int, ...] = ()
    is_repeated: bool = True
    batches: Tuple[int, ...] = ()


def judge(here: Sequence[Values], there: Sequence[Values], shift: int, error: NumbersError) -> Verdict:
    """
    The verdict on the values of all ranks.

    Args:
        here: of each rank, on its own batches.
        there: of each rank, on the batches of the rank that is `shift` further; empty if there is one rank only.
        shift: 1 to ranks - 1.
        error: the failure, which names ranks.
    """
    ranks = len(here)
    if not there:
        return Verdict(batches=(0,)) if _fails(here[0]) else Verdict((0,), is_repeated=False)
    batches, devices = [], set()
    for owner in range(ranks):
        second = (owner - shift) % ranks  # has computed with the same batch
        fails, fails_there = _fails(here[owner]), _fails(there[second])
        if fails and fails_there:
            batches.append(owner)
        elif fails or fails_there:
            devices.add(owner if fails else second)
    if devices:
        return Verdict(tuple(sorted(devices)))
    if batches:
        return Verdict(batches=tuple(batches))
    named = error.ranks if error.of != "gradient" and len(error.ranks) < ranks else ()
    return Verdict(named, is_repeated=False)


def distance(nodes: Sequence[str]) -> int:
    """The least distance at which every rank has a rank of another node, by the node of each rank; 1 if there is none."""
    count = len(nodes)
    for shift in range(1, count):
        if all(node != nodes[(rank + shift) % count] for rank, node in enumerate(nodes)):
            return shift
    return 1


class Trial:
    """Repeats a step of the training; one per training."""

    def __init__(self, group: Group, task: Task, batches: Batches, strategy: Strategy) -> None:
        self.config = task.config
        self.group, self.task, self.batches, self.strategy = group, task, batches, strategy

    def after(self, error: NumbersError, begin: int) -> Verdict | None:
        """
        The verdict on a step whose first sample has the position `begin`; a collective.

        Returns:
            None if the trial shows nothing: no rank is named by the error, or only gradients of a sharded model were not finite.
        """
        if not error.ranks:
            return None
        if self.group.rank.is_main:
            log_line(f"WARNING: {str(error).partition(';')[0]}: the step is repeated to find the cause")
        ranks = self.group.rank.world_size
        shift = distance(self.group.gather(self.group.rank.node))
        shifts = [0, shift] if ranks > 1 else [0]
        everyone = self.group.gather([self._values(begin, by) for by in shifts])
        here = [values[0] for values in everyone]
        there = [values[1] for values in everyone] if ranks > 1 else []
        verdict = judge(here, there, shift, error)
        knows_gradients = error.of == "loss" or self._has_gradients()
        return verdict if verdict.is_repeated or knows_gradients else None  # else the losses are finite, and were

    def error(self, error: NumbersError, verdict: Verdict, begin: int) -> NumbersError | DeviceError:
        """The error with what the trial has shown."""
        cause = str(error).partition(";")[0] + "; "
        if error.of != "norm":  # of different norms, most ranks have made that update
            cause += "the weights were not updated. "
        cause += "The step was repeated" if verdict.is_repeated else "The step was repeated, and is finite on all ranks"
        if verdict.devices:
            return DeviceError(f"{cause}: {_device_text(verdict)}", verdict.devices)
        if verdict.batches:
            return NumbersError(f"{cause}: {self._batch_text(verdict, begin)}", error.step)
        remedy = "some device computes wrongly at times, or the code varies. Restart from the last checkpoint"
        return NumbersError(f"{cause}: {remedy}", error.step)

    def _batch_text(self, verdict: Verdict, begin: int) -> str:
        ranks = self.group.rank.world_size
        if 1 < ranks == len(verdict.batches):
            return (
                "the batches of all ranks fail on two ranks each: it is the weights or the code, so take a smaller lr"
            )
        samples = [sample for rank in verdict.batches for sample in self._samples(begin, rank)]
        more = f" and {len(samples) - NAMED} more" if len(samples) > NAMED else ""
        return (
            f"the batch of rank {fold(verdict.batches)} fails {'on another rank too, so it is no device' if ranks > 1 else 'again'}. Look at "
            f"these samples of the training data: {', '.join(map(str, samples[:NAMED]))}{more}; roll_back=1 leaves them out. Or continue from "
            "the last checkpoint with a smaller lr"
        )

    def _samples(self, begin: int, rank: int) -> List[int]:
        order = self.batches.source.order
        return [
            order.sample(position)
            for first in self._firsts(begin, rank)
            for position in range(first, first + self.config.micro_batch)
        ]

    def _firsts(self, begin: int, rank: int) -> List[int]:
        """The positions of the micro batches of a rank in a step."""
        count = self.config.micro_batch
        return [begin + micro * self.batches.stride + rank * count for micro in range(self.config.accumulation)]

    def _has_gradients(self) -> bool:
        """A rank has whole gradients of the batches it computes with, before they are summed over the ranks."""
        return self.config.strategy == "ddp"

    def _values(self, begin: int, shift: int) -> List[float]:
        """The losses of the micro batches of the rank that is `shift` further; and, if there is one, the norm of their gradient."""
        owner = (self.group.rank.global_rank + shift) % self.group.rank.world_size
        firsts = self._firsts(begin, owner)
        compute = self._losses_and_norm if self._has_gradients() else self._losses
        buffers = [(buffer, buffer.clone()) for buffer in self.strategy.unwrapped_model.buffers()]
        seed = derive_seed(self.config.seed, "trial", firsts[0])
        with preserve_device_rng(self.group.accelerator), seeded_rng(seed):
            seed_everything(seed, self.group.accelerator)  # dropout is the same on two ranks
            values = compute([self.group.on_all(functools.partial(self.batches.at, first)) for first in firsts])
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        return values

    def _losses(self, batches: Sequence[Batch]) -> List[float]:
        with self.strategy.without_gradients() as model:
            return [float(loss_of(self.task, model, batch)) for batch in batches]

    def _losses_and_norm(self, batches: Sequence[Batch]) -> List[float]:
        """With the gradients of this rank alone, which are discarded, as are those of an unfinished step."""
        self.strategy.discard_gradients()
        losses = []
        for batch in batches:
            with self.strategy.micro_batch(last=False):
                loss = self.strategy.forward(batch)
                (loss / len(batches)).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                losses.append(float(loss.detach()))
        norm = float(gradient_norm(self.strategy.unwrapped_model.parameters()))
        self.strategy.discard_gradients()
        return [*losses, norm]


def _device_text(verdict: Verdict) -> str:
    is_one = len(verdict.devices) == 1
    devices = f"the {'device' if is_one else 'devices'} of rank {fold(verdict.devices)} {'computes' if is_one else 'compute'} wrongly"
    if verdict.is_repeated:
        proof = "and another rank rightly with the same batch"
    else:
        proof = "if only at times, or the code varies"
    return f"{devices}, {proof}. Continue from the last checkpoint without that node"


def _fails(values: Values) -> bool:
    return not all(map(math.isfinite, values))
