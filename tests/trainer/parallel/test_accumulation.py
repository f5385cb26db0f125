"""The gradients that a rank keeps between the micro batches of a step."""

from __future__ import annotations

import pytest
import torch

from tests.grounds.live_memory import LiveMemory, rank_among
from trainer.announce import accumulation_cost
from trainer.config.load import load_config
from trainer.parallel.fsdp import Fsdp2
from trainer.tasks.gpt import Gpt

SHAPE = "model.layers=2 model.width=64 model.heads=2 model.context=8 device=cpu strategy=fsdp2 accumulation=3"
RANKS = 4


def _kept_between_micro_batches(words: str) -> tuple[list[int], int]:
    """The bytes that each micro batch but the last leaves in memory more than before the step, and those of all gradients."""
    config = load_config(words=f"{SHAPE} {words}".split())
    with rank_among(RANKS) as group:
        strategy = Fsdp2(group, config, Gpt(config))
        batch = torch.ones(1, config.model.context + 1, dtype=torch.int64)
        # a first step makes what FSDP2 keeps for ever
        for last in (False, True):
            with strategy.micro_batch(last=last):
                strategy.backward(strategy.forward(batch))
        strategy.discard_gradients()
        found = []
        with LiveMemory() as memory:
            for _ in range(2):
                with strategy.micro_batch(last=False):
                    strategy.backward(strategy.forward(batch))
                found.append(memory.now())
        assert "allreduce_" not in memory.operations
        is_sharded = config.fsdp.accumulate == "sharded"
        assert ("_reduce_scatter_base_" in memory.operations) == is_sharded, memory.operations
        return found, 4 * sum(strategy.sizes.values())


@pytest.mark.filterwarnings("ignore:Set timeout is now only supported:UserWarning")  # this group is neither
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_rank_keeps_its_shard_of_the_gradients_between_micro_batches(precision: str, replicas: int) -> None:
    kept, whole = _kept_between_micro_batches(f"precision={precision} fsdp.replicas={replicas}")
    shards = RANKS // replicas
    assert kept == [pytest.approx(whole / shards, rel=0.05)] * 2


def test_a_rank_keeps_whole_gradients_between_micro_batches_if_configured() -> None:
    kept, whole = _kept_between_micro_batches("fsdp.accumulate=whole")
    assert min(kept) > 0.95 * whole


def test_cost_of_both_ways_is_printed() -> None:
    sharded = load_config(words=["strategy=fsdp2", "accumulation=8"])
    assert accumulation_cost(sharded, 1_000_000_000, 4) == (
        "fsdp.accumulate=sharded: a rank keeps 1.00 GB of gradients between the 8 micro batches of a step, and sends 24.00 GB a step; "
        "whole would keep 4.00 GB and send 3.00 GB"
    )
    whole = load_config(words=["strategy=fsdp2", "accumulation=8", "fsdp.replicas=2", "fsdp.accumulate=whole"])
    assert accumulation_cost(whole, 1_000_000_000, 4) == (
        "fsdp.accumulate=whole: a rank keeps 4.00 GB of gradients between the 8 micro batches of a step, and sends 2.00 GB a step; "
        "sharded would keep 2.00 GB and send 16.00 GB"
    )
