"""sample_prompts: texts that the model continues, equal to those of transformers, and without an effect on the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.grounds.chats import sums, write_records, write_tokenizer
from tests.grounds.hf_models import write_model
from tests.grounds.metrics import read_metrics
from tests.grounds.trainings import NO_PREEMPTION, TINY, train_alone, world_of_one
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.tasks.continuation import NEW_TOKENS, continuations, encoded
from trainer.tasks.load import load_task
from trainer.train import Trainer

pytestmark = pytest.mark.trains

PROMPTS = ["what is 1 plus 1?", "it"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _sampled(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("sampled ")]


@pytest.mark.parametrize("task", ["hf:{folder}", "trainer.tasks.llama:Llama"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_texts_are_those_that_transformers_generates(tmp_path: Path, task: str, *, is_tied: bool) -> None:
    folder = tmp_path / "model"
    theirs = write_model(folder, tie_word_embeddings=is_tied)
    words = [f"task={task.format(folder=folder)}", f"init={folder}", "options.context=90"]
    ours: Any = load_task(load_config(words=words))
    model: Any = ours.build_model()
    model.load_state_dict({key: theirs.state_dict()[key] for key in model.state_dict()})
    codec = ours.codec()
    tokens = encoded(PROMPTS, codec, 90)
    with torch.no_grad():
        found = continuations(ours, model.eval(), tokens, codec, device=torch.device("cpu"))
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        for prompt, text in zip(tokens, found, strict=True):
            whole = theirs.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=2)
            new = [token for token in whole[0, len(prompt) :].tolist() if token != tokenizer.eos_token_id]
            assert text == tokenizer.decode(new)


def test_prompt_is_a_question_where_chats_are_trained(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    chats = write_records(tmp_path / "chat.jsonl", sums(4))
    task: Any = load_task(load_config(words=[f"task=hf:{tmp_path / 'model'}", f"data.paths={chats}"]))
    codec = task.codec()
    assert codec.decode(codec.encode("what is 1 plus 1?")) == "<|begin|>[user]\nwhat is 1 plus 1?<|end|>\n[assistant]\n"


def test_model_continues_what_it_has_learned_at_evaluations_and_trains_as_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("abcdefg" * 40)
    words = [
        *TINY,
        "model.width=32",
        "micro_batch=8",
        "lr=0.02",
        "steps=60",
        "save_steps=1000",
        f"data.paths={tmp_path / 'a.txt'}",
    ]
    train_alone(load_config(words=[*words, f"out={tmp_path / 'plain'}"]))
    assert _sampled(capsys.readouterr().out) == []
    sampling = 'sample_prompts=["abc","c"]'
    train_alone(load_config(words=[*words, "eval_steps=30", sampling, f"out={tmp_path / 'sampled'}"]))
    lines = _sampled(capsys.readouterr().out)
    assert [line.split(" ", 2)[1] for line in lines] == ["step=30", "step=30", "step=60", "step=60"]
    assert [line.split(" ", 2)[2] for line in lines[2:]] == ['"abc" "defga"', '"c" "defgabc"']  # up to the context of 8
    losses = [[record["loss"] for record in read_metrics(tmp_path / out)] for out in ("plain", "sampled")]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("words", ["", "precision=bf16 activation_checkpointing=true"])
def test_sharded_model_continues_as_a_whole_one(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    write_model(tmp_path / "model", tie_word_embeddings=True)
    chats = write_records(tmp_path / "chat.jsonl", sums(8))
    base = [f"task=hf:{tmp_path / 'model'}", "options.context=96", f"data.paths={chats}", "micro_batch=1", "steps=2", "device=cpu",
            "report=", f"sample_prompts={json.dumps(PROMPTS)}", *words.split()]  # fmt: skip
    group = initialise("cpu", 60.0, world_of_one())
    found = []
    try:
        for strategy in ("ddp", "fsdp2"):
            config = load_config(words=[*base, f"strategy={strategy}", f"out={tmp_path / strategy}"])
            trainer = Trainer(config, group, Progress(group.rank, config.steps), NO_PREEMPTION)
            trainer.run()
            trainer.metrics.close(1)
            found.append(_sampled(capsys.readouterr().out))
    finally:
        torch.distributed.destroy_process_group()
    assert len(found[0]) == 2
    if "bf16" not in words:  # rounded in other places
        assert found[0] == found[1]
    assert [line.split('"')[1] for line in found[1]] == PROMPTS


def test_prompts_that_cannot_be_continued_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh" * 40)
    words = [*TINY, f"data.paths={tmp_path / 'a.txt'}", f"out={tmp_path / 'out'}", "steps=2"]
    folder = write_tokenizer(tmp_path / "tokenizer")
    for more, problem in (
        (
            ["sample_prompts=abcdefgh"],
            "'abcdefgh' has 8 tokens: at least 1, and fewer than the context of 8, are needed",
        ),
        (
            ["sample_prompts=a", "model.vocabulary=300"],
            "model.vocabulary=300 is not that of bytes: name data.tokenizer",
        ),
        (
            ["sample_prompts=a", f"data.tokenizer={folder}"],
            f"{folder / 'tokenizer.json'} has 292 tokens, the model 256",
        ),
        (["sample_prompts=a", "task=tests.grounds.tasks:Points"], "task=tests.grounds.tasks:Points continues no texts"),
    ):
        with pytest.raises(UserError) as caught:
            train_alone(load_config(words=[*(words if "task" not in more[-1] else words[5:]), *more]))
        assert str(caught.value).startswith(f"sample_prompts: {problem}")
