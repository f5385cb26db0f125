"""Evaluation on the samples of "validation"."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch

from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.data.batches import Batches
from trainer.data.samples import Samples
from trainer.errors import TrainerError, UserError
from trainer.metrics.jsonl import digits
from trainer.parallel.base import Strategy
from trainer.runtime.group import Group
from trainer.runtime.progress import Progress
from trainer.tasks.base import Task

Terms = Tuple[List[float], List[float]]  # sums and counts, element by element


class Evaluation:
    """Runs on every rank, every eval_steps steps and at the end."""

    def __init__(
        self, task: Task, samples: Samples | None, config: TrainConfig, group: Group, *, progress: Progress
    ) -> None:
        self.task, self.config, self.group, self.progress = task, config, group, progress
        self.batches = Batches(samples, task, config, group, split="validation") if samples is not None else None

    def after_step(self, step: int, strategy: Strategy, *, last: bool) -> Dict[str, float]:
        """Evaluate if it is due; returns what run() does, or {}."""
        every = self.config.eval_steps
        if self.batches is None or not (last or (every is not None and step % every == 0)):
            return {}
        self.progress.write("eval", step)
        return self.run(step, strategy, self.batches)

    def run(self, step: int, strategy: Strategy, batches: Batches) -> Dict[str, float]:
        """Return the values over all batches and ranks by name, each with the prefix eval_; rank 0 logs them."""
        mine: List[Dict[str, Terms]] = []
        with strategy.evaluating() as model:
            for batch, samples in batches.first_batches(self.config.eval_batches):
                found = self.task.evaluate(model, batch)
                terms = self._terms(found, samples)
                mine.append(terms if samples else {name: _zeros(pair) for name, pair in terms.items()})
        added = {name: add([terms[name] for terms in mine if name in terms]) for terms in mine for name in terms}
        everyone: List[Any] = [json.loads(encoded) for encoded in self.group.gather_bytes(json.dumps(added).encode())]
        if any(set(rank_terms) != set(added) for rank_terms in everyone):
            names = [sorted(rank_terms) for rank_terms in everyone]
            raise TrainerError.agreed(f"task={self.config.task}: evaluate() gave other names on other ranks: {names}")
        values = {f"eval_{name}": quotient(add([rank_terms[name] for rank_terms in everyone])) for name in added}
        if self.group.rank.is_main:
            log_line(f"evaluated step={step} {' '.join(f'{name}={digits(value)}' for name, value in values.items())}")
        return values

    def _terms(self, found: Mapping[str, Any], samples: int) -> Dict[str, Terms]:
        """The sums and counts of a batch with this number of samples, by name."""
        terms: Dict[str, Terms] = {}
        for name, value in found.items():
            is_pair = isinstance(value, (tuple, list))
            sums, counts = value if is_pair else (samples * float(value), samples)
            pair = _numbers(sums), _numbers(counts)
            if len(pair[0]) != len(pair[1]):
                sizes = f"{len(pair[0])} sums and {len(pair[1])} counts"
                raise UserError(
                    f"task={self.config.task}: evaluate() gave {sizes} as {name}: they have to be equally many"
                )
            terms[str(name)] = pair
        return terms


def _numbers(part: Any) -> List[float]:  # noqa: ANN401 -- a number or tensor
    numbers: List[float] = torch.as_tensor(part).detach().cpu().double().flatten().tolist()  # a device may lack fp64
    return numbers


def _zeros(terms: Terms) -> Terms:
    """Nothing, for a batch whose samples another rank has counted."""
    return [0.0] * len(terms[0]), [0.0] * len(terms[1])


def add(terms: Sequence[Terms]) -> Terms:
    """Add sums to sums and counts to counts."""
    return [sum(column) for column in zip(*(sums for sums, _ in terms))], [
        sum(column) for column in zip(*(counts for _, counts in terms))
    ]


def quotient(terms: Terms) -> float:
    """The mean of sum / count over the elements that have a count; NaN without any."""
    quotients = [total / count for total, count in zip(*terms) if count]
    return sum(quotients) / len(quotients) if quotients else float("nan")
