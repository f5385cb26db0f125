"""Evaluation on the samples of "validation"."""

from __future__ import annotations

import json
from typing import Any, Dict

from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.data.batches import Batches
from trainer.data.samples import Samples
from trainer.errors import TrainerError
from trainer.metrics.jsonl import digits
from trainer.parallel.base import Strategy
from trainer.runtime.group import Group
from trainer.runtime.progress import Progress
from trainer.tasks.base import Task, as_floats


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
        """Return the means over batches and ranks by name, each with the prefix eval_; rank 0 logs them."""
        sums: Dict[str, float] = {}
        count = 0
        with strategy.evaluating() as model:
            for batch in batches.first_batches(self.config.eval_batches):
                for name, value in as_floats(self.task.evaluate(model, batch)).items():
                    sums[name] = sums.get(name, 0.0) + value
                count += 1
        means = {f"eval_{name}": total / count for name, total in sums.items()}
        found: Any = [json.loads(encoded) for encoded in self.group.gather_bytes(json.dumps(means).encode())]
        if any(set(rank_means) != set(means) for rank_means in found):
            raise TrainerError.agreed(f"task={self.config.task}: evaluate() gave other names on other ranks: {found}")
        means = {name: sum(rank_means[name] for rank_means in found) / len(found) for name in means}
        if self.group.rank.is_main:
            log_line(f"evaluated step={step} {' '.join(f'{name}={digits(value)}' for name, value in means.items())}")
        return means
