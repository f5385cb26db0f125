"""The memory of a training is compared with that of a card before the first step."""

from __future__ import annotations

import pytest

from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.memory.fitting import checked_memory

GB = 10**9
SEVEN = 6_860_000_000  # parameters of model.size=7b


def config(words: str) -> TrainConfig:
    model = [] if "task=" in words else ["model.size=7b"]
    return load_config(words=[*model, "precision=bf16", *words.split()])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("strategy=fsdp2 activation_checkpointing=true", "memory: about 18.88 GB of 80.00 GB on a card, in the "),
        (
            "strategy=fsdp2",
            "it may not fit: fits first: strategy=fsdp2 activation_checkpointing=selective",
        ),
        (
            "strategy=fsdp2 micro_batch=64 model.context=8192",
            "it may not fit: fits first: strategy=fsdp2 activation_checkpointing=true micro_batch=16 accumulation=4",
        ),
        ("strategy=fsdp2 task=my.tasks:Mine", "weights, gradients and optimizer take 13.72 GB of 80.00 GB on a card; "),
        ("strategy=fsdp2 task=hf:folder lora.rank=8", ""),
    ],
)
def test_line_compares_the_training_with_the_card(words: str, line: str) -> None:
    found = checked_memory(config(words), SEVEN, 8, 80 * GB)
    assert line in found
    assert bool(line) == bool(found)
    assert ("WARNING" in found) == ("may not fit" in line)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "strategy=ddp",
            "take 109.76 GB on each of 8 cards with strategy=ddp, and a card has 80.00 GB; fits first: strategy=fsdp2",
        ),
        ("strategy=ddp task=my.tasks:Mine", "a card has 80.00 GB; split it by strategy=fsdp2, or over more cards"),
    ],
)
def test_state_that_no_card_holds_is_refused_before_the_first_step(words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        checked_memory(config(words), SEVEN, 8, 80 * GB)


def test_nothing_is_compared_where_the_memory_is_not_known() -> None:
    assert not checked_memory(config("strategy=ddp"), SEVEN, 8, None)
