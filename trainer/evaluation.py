"""Evaluation on the samples of "validation"."""

from __future__ import annotations

import json
import sys
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
from trainer.tasks.base import Task, has_metrics
from trainer.tasks.continuation import Codec, continuations, encoded

Terms = Tuple[List[float], List[float]]  # sums and counts, element by element


class Evaluation:
    """Runs on every rank, every eval_steps steps and at the end."""

    def __init__(
        self, task: Task, samples: Samples | None, config: TrainConfig, group: Group, *, progress: Progress
    ) -> None:
        self.task, self.config, self.group, self.progress = task, config, group, progress
        self.batches = Batches(samples, task, config, group, split="validation") if samples is not None else None
        self._prompts = Prompts(task, config, group) if config.sample_prompts else None
        self._trained: Dict[str, Terms] = {}  # what metrics() gave before an evaluation, not reported yet

    def begin(self) -> None:
        """Forget what the task has collected for metrics(): by the warm-up, or in steps before a roll-back."""
        self.task.metrics()
        self._trained = {}

    def is_due(self, step: int, *, last: bool) -> bool:
        every = self.config.eval_steps
        has_any = self.batches is not None or self._prompts is not None
        return has_any and (last or (every is not None and step % every == 0))

    def after_step(self, step: int, strategy: Strategy, *, last: bool) -> Dict[str, float]:
        """Evaluate if it is due; returns what run() does, or {}."""
        if not self.is_due(step, last=last):
            return {}
        self.progress.write("eval", step)
        self._trained = self._trained_terms()
        values = {} if self.batches is None else self.run(step, strategy, self.batches)
        if self._prompts is not None:
            self._prompts.log(step, strategy)
        self.task.metrics()  # of validation samples, if evaluate() calls loss()
        return values

    def on_all_samples(self, step: int, strategy: Strategy) -> Dict[str, float]:
        """Evaluate once; there must be validation samples."""
        assert self.batches is not None
        return self.run(step, strategy, self.batches)

    def run(self, step: int, strategy: Strategy, batches: Batches) -> Dict[str, float]:
        """Return the values over all batches and ranks by name, each with the prefix eval_; rank 0 logs them."""
        mine: List[Dict[str, Terms]] = []
        with strategy.evaluating() as model:
            limit = sys.maxsize if self.config.evaluate_only else self.config.eval_batches
            for batch, samples in batches.first_batches(limit):
                found = self.task.evaluate(model, batch)
                terms = self._terms(found, samples)
                if not samples:  # nothing: another rank has counted them
                    terms = {name: ([0.0] * len(sums), [0.0] * len(counts)) for name, (sums, counts) in terms.items()}
                mine.append(terms)
        added = {name: add([terms[name] for terms in mine if name in terms]) for terms in mine for name in terms}
        means = self._over_ranks(added, "evaluate()")
        values = {f"eval_{name}": value for name, value in means.items()}
        if self.group.rank.is_main:
            log_line(f"evaluated step={step} {' '.join(f'{name}={digits(value)}' for name, value in values.items())}")
        return values

    def training_metrics(self, step: int, *, last: bool) -> Dict[str, float]:
        """The task's metrics() over all ranks every log_steps steps, each with the prefix train_; rank 0 logs them."""
        if not has_metrics(self.task) or not (last or step % self.config.log_steps == 0):
            return {}
        means, self._trained = self._over_ranks(self._trained_terms(), "metrics()"), {}
        values = {f"train_{name}": value for name, value in means.items()}
        if self.group.rank.is_main and values:
            log_line(f"trained step={step} {' '.join(f'{name}={digits(value)}' for name, value in values.items())}")
        return values

    def _trained_terms(self) -> Dict[str, Terms]:
        """The terms of metrics() since the last report."""
        terms = self._terms(self.task.metrics(), 1)
        return {
            name: add([some[name] for some in (self._trained, terms) if name in some])
            for name in {**self._trained, **terms}
        }

    def _over_ranks(self, mine: Mapping[str, Terms], method: str) -> Dict[str, float]:
        """The quotients of the sums over all ranks; a collective."""
        everyone = self.group.gather(mine)
        if any(set(rank_terms) != set(mine) for rank_terms in everyone):
            names = [sorted(rank_terms) for rank_terms in everyone]
            raise TrainerError.agreed(f"task={self.config.task}: {method} gave other names on other ranks: {names}")
        return {name: quotient(add([rank_terms[name] for rank_terms in everyone])) for name in mine}

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


class Prompts:
    """sample_prompts, which the model continues."""

    def __init__(self, task: Task, config: TrainConfig, group: Group) -> None:
        """Raises UserError: on all ranks alike; the task continues no texts, or a prompt cannot be continued."""
        self.task, self.texts, self.group = task, config.sample_prompts, group
        self.codec, self.tokens = group.on_all(self._encoded)

    def _encoded(self) -> Tuple[Codec, List[List[int]]]:
        codec = self.task.codec()
        if codec is None:
            raise UserError(f"sample_prompts: task={self.task.config.task} continues no texts")
        return codec, encoded(self.texts, codec, self.task.tokens_per_sample or 0)

    def log(self, step: int, strategy: Strategy) -> None:
        with strategy.evaluating() as model:
            found = continuations(self.task, model, self.tokens, self.codec, device=self.group.device)
        if self.group.rank.is_main:
            for prompt, text in zip(self.texts, found):
                shown = " ".join(json.dumps(part, ensure_ascii=False) for part in (prompt, text))
                log_line(f"sampled step={step} {shown}")


def _numbers(part: object) -> List[float]:
    numbers: List[float] = torch.as_tensor(part).detach().cpu().double().flatten().tolist()  # a device may lack fp64
    return numbers


def add(terms: Sequence[Terms]) -> Terms:
    """Add sums to sums and counts to counts."""
    return [sum(column) for column in zip(*(sums for sums, _ in terms))], [
        sum(column) for column in zip(*(counts for _, counts in terms))
    ]


def quotient(terms: Terms) -> float:
    """The mean of sum / count over the elements that have a count; NaN without any."""
    quotients = [total / count for total, count in zip(*terms) if count]
    return sum(quotients) / len(quotients) if quotients else float("nan")
