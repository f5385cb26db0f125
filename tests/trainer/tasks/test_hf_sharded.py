"""fsdp2 builds a model of transformers without memory for its weights, and trains it as the model that is built whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.grounds import components
from tests.grounds.hf_models import write_model
from tests.grounds.live_memory import LiveMemory, rank_among
from tests.grounds.metrics import read_metrics
from tests.grounds.trainings import NO_PREEMPTION, world_of_one
from tests.trainer.tasks.test_hf import _cache, settings
from trainer.parallel.fsdp import Fsdp2
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.tasks.hf import HuggingFaceModel
from trainer.tasks.load import load_task
from trainer.train import Trainer

pytestmark = pytest.mark.trains

__all__ = ["_cache"]
LORA = ("lora.rank=2", "lora.targets=q_proj,down_proj", "lr=0.05")


def _numbers(folder: Path, out: Path, *words: str) -> tuple[list[tuple[float, float]], Any]:
    """Losses and norms of three steps under fsdp2, and the strategy."""
    config = settings(folder, out, "steps=3", "strategy=fsdp2", "lr=0.05", *words)
    group = initialise("cpu", 60.0, world_of_one())
    try:
        trainer = Trainer(config, group, Progress(group.rank, config.steps), NO_PREEMPTION)
        trainer.run()
        trainer.metrics.close(1)
    finally:
        torch.distributed.destroy_process_group()
    return [(record["loss"], record["grad_norm"]) for record in read_metrics(out)], trainer.strategy


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers for it
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("llama", ()),
        ("gemma3_text", ()),  # tied, with buffers for two kinds of layers and a scale of the embedding
        ("starcoder2", ()),
        ("qwen3", ("precision=bf16", "activation_checkpointing=true")),
        ("llama", LORA),
        ("llama", (*LORA, "precision=bf16")),
    ],
)
def test_model_without_memory_trains_as_the_whole_one(
    kind: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[:1] == LORA[:1]:
        components.module("peft")
    changes = {"tie_word_embeddings": True} if kind == "gemma3_text" else {}
    write_model(tmp_path / "model", kind, **changes)
    found, strategy = _numbers(tmp_path / "model", tmp_path / "out", *words)
    frozen = {
        weight.dtype for weight in torch.nn.Module.parameters(strategy.model) if not weight.requires_grad
    }  # nothing without adapters
    assert frozen <= {torch.bfloat16 if "precision=bf16" in words else torch.float32}
    monkeypatch.setattr(HuggingFaceModel, "build_unfilled", lambda _: None)
    assert found == _numbers(tmp_path / "model", tmp_path / "whole", *words)[0]


def test_a_rank_holds_its_shard_and_one_parameter_while_it_builds(tmp_path: Path) -> None:
    write_model(tmp_path / "model", hidden_size=64, intermediate_size=256, num_hidden_layers=8)
    config = settings(tmp_path / "model", tmp_path / "out", "strategy=fsdp2")
    with rank_among(8) as group, LiveMemory() as memory:
        strategy = Fsdp2(group, config, load_task(config))
        model = strategy.model
    whole = 4 * sum(strategy.sizes.values())
    largest = 4 * max(strategy.sizes.values())
    assert whole / 8 < memory.peak < 1.05 * whole / 8 + 2 * largest
    assert all(not tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
