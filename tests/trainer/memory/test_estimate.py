"""The estimate of a step's memory against all live tensors of rank 0 among several."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.grounds.checkpoints import update
from tests.grounds.live_memory import LiveMemory, rank_among
from tests.grounds.trainings import world_of_one
from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.memory.estimate import peak
from trainer.memory.shapes import gpt_shape, llama_shape, setup_of
from trainer.parallel.ddp import Ddp
from trainer.parallel.fsdp import Fsdp2
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.tasks.base import Task
from trainer.tasks.gpt import Gpt
from trainer.tasks.llama import Llama

pytestmark = pytest.mark.trains

SHAPE = "model.layers=4 model.width=64 model.heads=4 model.context=64 model.vocabulary=256 device=cpu"

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64,
}  # fmt: skip


@contextlib.contextmanager
def _rank_of_ddp(*, launched: bool) -> Iterator[Group]:
    """DistributedDataParallel refuses a group that sends nothing; its memory does not depend on the number of ranks."""
    yield initialise("cpu", 60.0, world_of_one() if launched else {})
    if launched:
        torch.distributed.destroy_process_group()


def _measured(config: TrainConfig, task: Task, ranks: int) -> int:
    """The most bytes of live tensors in the second step."""
    batch = torch.ones(config.micro_batch, (task.tokens_per_sample or 0) + 1, dtype=torch.int64)
    is_sharded = config.strategy == "fsdp2"
    with rank_among(ranks) if is_sharded else _rank_of_ddp(launched=ranks > 1) as group, LiveMemory() as memory:
        strategy = (Fsdp2 if is_sharded else Ddp)(group, config, task)
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
        ("micro_batch=8 activation_checkpointing=2", 1),
        ("strategy=fsdp2 micro_batch=8 activation_checkpointing=3", 4),
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
    found = _measured(config, Gpt(config), ranks)
    expected = peak(gpt_shape(config.model), setup_of(config, ranks, config.model.context))
    assert expected.total == pytest.approx(found, rel=0.1), expected


@pytest.mark.parametrize(
    "more",
    [
        "strategy=fsdp2 micro_batch=4",
        "strategy=fsdp2 micro_batch=4 activation_checkpointing=true",
        "strategy=fsdp2 micro_batch=4 activation_checkpointing=selective precision=bf16",
    ],
)
def test_estimate_for_a_llama_is_within_ten_per_cent(tmp_path: Path, more: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    words = ("task=trainer.tasks.llama:Llama", f"options.shape={path}", "device=cpu", *more.split())
    config = load_config(words=words)
    task = Llama(config, shape=str(path))
    expected = peak(llama_shape(task.shape), setup_of(config, 4, task.context))
    assert expected.total == pytest.approx(_measured(config, task, 4), rel=0.1), expected
