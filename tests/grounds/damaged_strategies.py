"""
Damage the newest checkpoint under every strategy; every rank of a group runs this.

    RANK=… WORLD_SIZE=… python -m tests.grounds.damaged_strategies FOLDER STRATEGY…

Each rank writes rank-N.json: lists of [strategy, damage, step it resumed from, True if the sum of the weights is the saved one], and of
[strategy, step it returned to, True if the next step repeats bit for bit].
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch

from tests.grounds.checkpoints import DAMAGES, SHARD_DAMAGES, add_gradient, update
from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.parallel import build_strategy
from trainer.parallel.base import Strategy
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.tasks.gpt import Gpt

WORDS = ("model.layers=1", "model.width=16", "model.heads=1", "model.context=8", "save_steps=1")
# The damages that every strategy is tested with; the others take the same path through the reader.
COMMON_DAMAGES = tuple(
    name
    for name in DAMAGES
    if name.startswith(
        ("flipped bits in the state", "truncated", "missing", "empty", "garbled", "foreign owner of the")
    )
)
COMMON_SHARD_DAMAGES = ("flipped bits in a shard", "missing shard", "swapped shards", "manifest of another save")
FULLY_TESTED = "fsdp2"  # tested with all damages, as DDP is in tests/trainer/checkpoint/format/test_files.py
TOKENS = torch.arange(18).view(2, 9)


def damages_of(strategy: str) -> tuple[str, ...]:
    whole = tuple(DAMAGES) if strategy == FULLY_TESTED else COMMON_DAMAGES
    return (*whole, *(SHARD_DAMAGES if strategy == FULLY_TESTED else COMMON_SHARD_DAMAGES))


class TrainedStrategy:
    """A strategy with two checkpoints in FOLDER/<strategy>, and the same two in shards in FOLDER/<strategy>-shards."""

    def __init__(self, folder: Path, group: Group, config: TrainConfig) -> None:
        self.group, self.config, self.folder = group, config, folder / config.strategy
        self.task = Gpt(config)
        self.strategy: Strategy = build_strategy(group, config, self.task, folder)
        self.shards = self.folder.with_name(f"{config.strategy}-shards")
        folders, self.sums = [self._checkpoints(self.folder), self._checkpoints(self.shards)], {}
        for step in (1, 2):
            self._train()
            for checkpoints in folders:
                self._evaluate()
                checkpoints.save(TrainState(step, 2 * step), self.strategy)
            self.sums[step] = self._sum()

    def damage(self, damage: str) -> tuple[str, str, int, bool]:
        out = self.folder.with_name(f"{self.config.strategy}-{damage}".replace(" ", "-"))
        if self.group.rank.is_main:
            shutil.copytree(self.shards if damage in SHARD_DAMAGES else self.folder, out)
            shutil.copytree(out / "step_2", out / "step_3.tmp-4711")  # half-written, beside the complete checkpoints
            (out / "step_3.tmp-4711" / "manifest.json").unlink()
            {**DAMAGES, **SHARD_DAMAGES}[damage](out / "step_2")
        self._train()  # so that the weights are neither of step 1 nor of step 2
        self._evaluate()
        step = self._checkpoints(out).resume(self.strategy).step
        return self.config.strategy, damage, step, self._sum() == self.sums.get(step)

    def return_to_step_2(self) -> tuple[str, int, bool]:
        """Train from step 2 to step 3, from the whole file and from the shards, after gradients that were computed and discarded."""
        sums, step = [], 0
        for out in (self.folder, self.shards, self.folder):
            step = self._checkpoints(out).resume(self.strategy).step
            self._train()
            sums.append(self._sum())
            add_gradient(self.strategy, TOKENS.flip(0))
            self.strategy.discard_gradients()
        return self.config.strategy, step, sums[0] == sums[1] == sums[2] != self.sums[2]

    def _checkpoints(self, out: Path) -> Checkpoints:
        """Sharded in folders of shards."""
        is_sharded = out == self.shards
        config = replace(self.config, checkpoint="sharded" if is_sharded else "whole")
        checkpoints = Checkpoints(self.group, config, out, "text", may_shard=is_sharded)
        checkpoints.prepare()
        return checkpoints

    def _train(self) -> None:
        update(self.strategy, 1e-2, add_gradient(self.strategy, TOKENS))

    def _evaluate(self) -> None:
        """Run a forward pass without backward, as an evaluation before a save or a roll back does."""
        with self.strategy.evaluating() as model:
            self.task.evaluate(model, TOKENS)

    def _sum(self) -> float:
        """Sum of all weights on rank 0; 0.0 on other ranks."""
        model = self.strategy.state()["model"]
        return sum(float(weight.double().sum()) for weight in model.values()) if self.group.rank.is_main else 0.0


def main(folder: Path, *strategies: str) -> None:
    group = initialise("cpu", 60.0, os.environ)
    found, returned = [], []
    for name in strategies:
        config = replace(load_config(words=WORDS), strategy=name)
        trained = TrainedStrategy(folder, group, config)
        found += [trained.damage(damage) for damage in damages_of(name)]
        returned.append(trained.return_to_step_2())
    (folder / f"rank-{group.rank.global_rank}.json").write_text(json.dumps({"damaged": found, "returned": returned}))
    group.close(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
