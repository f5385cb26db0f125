"""The estimate of a step's memory against all live tensors of rank 0 among several."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from tests.grounds.checkpoints import update
from tests.grounds.live_memory import LiveMemory, rank_among
from tests.grounds.trainings import world_of_one
from trainer.config.config import TrainConfig, load_config
from trainer.memory.estimate import peak
from trainer.memory.shapes import gpt_shape, setup_of
from trainer.parallel.ddp import Ddp
from trainer.parallel.fsdp import Fsdp2
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.tasks.gpt import Gpt

SHAPE = "model.layers=4 model.width=64 model.heads=4 model.context=64 model.vocabulary=256 device=cpu"


@contextlib.contextmanager
def _rank_of_ddp(*, launched: bool) -> Iterator[Group]:
    """DistributedDataParallel refuses a group that sends nothing; its memory does not depend on the number of ranks."""
    yield initialise("cpu", 60.0, world_of_one() if launched else {})
    if launched:
        torch.distributed.destroy_process_group()


def _measured(config: TrainConfig, ranks: int) -> int:
    """The most bytes of live tensors in the second step."""
    batch = torch.ones(config.micro_batch, config.model.context + 1, dtype=torch.int64)
    is_sharded = config.strategy == "fsdp2"
    with rank_among(ranks) if is_sharded else _rank_of_ddp(launched=ranks > 1) as group, LiveMemory() as memory:
        strategy = (Fsdp2 if is_sharded else Ddp)(group, config, Gpt(config))
        for _ in range(2):
            memory.peak, loss = 0, torch.zeros(())
            for micro in range(config.accumulation):
                with strategy.micro_batch(last=micro == config.accumulation - 1):
                    loss = strategy.forward(batch)
                    strategy.backward(loss)
            update(strategy, 1e-3, loss.detach())
        return int(memory.peak)


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("micro_batch=8", 1),
        ("micro_batch=8 activation_checkpointing=true accumulation=2", 2),
        ("micro_batch=8 activation_checkpointing=selective", 1),
        ("micro_batch=1", 2),
        ("strategy=fsdp2 micro_batch=8", 4),
        ("strategy=fsdp2 micro_batch=8 activation_checkpointing=true", 4),
        ("strategy=fsdp2 micro_batch=2 precision=bf16 accumulation=2", 4),
        ("strategy=fsdp2 micro_batch=1 fsdp.accumulate=whole accumulation=2", 4),
        ("strategy=fsdp2 micro_batch=1 optim.name=sgd", 4),
    ],
)
def test_estimate_for_a_gpt_is_within_ten_per_cent(words: str, ranks: int) -> None:
    config = load_config(words=[*SHAPE.split(), *words.split()])
    found = _measured(config, ranks)
    expected = peak(gpt_shape(config.model), setup_of(config, ranks, config.model.context))
    assert expected.total == pytest.approx(found, rel=0.1), expected
