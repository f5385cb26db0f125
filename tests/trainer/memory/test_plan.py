"""`python -m trainer plan`: the table, and wrong words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.__main__ import main
from trainer.config.load import load_config
from trainer.config.presets import SIZES
from trainer.memory.estimate import peak
from trainer.memory.shapes import gpt_shape, setup_of


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (
            "model.size=7b precision=bf16 micro_batch=1 cards=8 card_memory=80",
            "fits first: strategy=fsdp2 activation_checkpointing=false",
        ),
        (
            "model.size=1b precision=bf16 micro_batch=1 cards=8 card_memory=80",
            "fits first: strategy=ddp activation_checkpointing=false",
        ),
        ("model.size=70b precision=bf16 micro_batch=1 cards=8 card_memory=80", "none fits; the least is "),
    ],
)
def test_plan_names_the_first_settings_that_fit(words: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words.split()]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert last.startswith(advice)
    assert len(table) == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cards=0", "cards=0: allowed: a whole number above 0, such as cards=8"),
        ("task=hf:folder", "plan: knows the activations of the GPT and of task=trainer.tasks.llama:Llama only"),
        ("task=trainer.tasks.llama:Llama", "options.shape: name a config.json of Hugging Face"),
        ("task=trainer.tasks.llama:Llama options.shape=gone.json", "gone.json: cannot be read: No such file"),
        ("model.size=2b", "model.size=2b: allowed: "),
        ("fsdp.replicas=3 strategy=fsdp2 cards=8", "fsdp.replicas=3 does not divide 8 ranks"),
    ],
)
def test_wrong_words_are_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_plan_of_a_llama_is_by_its_config_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the sizes of Llama 3.1 8B, whose 8.03 billion parameters its model card names."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    more = {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **sizes, **more}))
    words = f"task=trainer.tasks.llama:Llama options.shape={path} options.context=4096 micro_batch=1 cards=16"
    assert main(["plan", *words.split()]) == 0
    head, *_, last = capsys.readouterr().out.splitlines()
    assert head.startswith(
        "8.03 billion parameters, 16 cards of 80 GB, precision=bf16 micro_batch=1, 4096 tokens a sample"
    )
    assert last == "fits first: strategy=fsdp2 activation_checkpointing=false"


@pytest.mark.parametrize(
    ("words", "cards"),
    [
        ("device=gcu", "1 card of 32 GB"),  # a T20's
        ("device=gcu card_memory=48 cards=2", "2 cards of 48 GB"),
        ("device=cuda", "1 card of 80 GB"),
    ],
)
def test_memory_of_a_card_is_that_of_the_device(words: str, cards: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.size=1b", "precision=fp32", *words.split()]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert f", {cards}, " in head
    verdicts = ["no", "no", "yes", "no", "no", "yes"] if "32" in cards else ["yes"] * 6
    if "2 cards" not in cards:
        assert [row.split()[-1] for row in rows[1:]] == verdicts
    assert last.startswith("fits first: strategy=ddp")


@pytest.mark.parametrize("size", SIZES)
def test_each_setting_that_saves_memory_needs_less(size: str) -> None:
    def total(words: str) -> float:
        config = load_config(
            words=[f"model.size={size}", "strategy=fsdp2", "precision=bf16", "accumulation=2", *words.split()]
        )
        return peak(gpt_shape(config.model), setup_of(config, 16, config.model.context)).total

    base = total("")
    assert total("micro_batch=4") < base
    assert total("activation_checkpointing=true") < total("activation_checkpointing=selective") < base
    assert base < total("fsdp.replicas=4") < total("fsdp.replicas=16")
    assert base < total("fsdp.accumulate=whole")
