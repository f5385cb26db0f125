"""task=hf:FOLDER: models of transformers from a local folder, trained, and written back as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from tests.grounds.chats import TOKENS, sums, write_records
from tests.grounds.checkpoints import saved_state
from tests.grounds.hf_models import build, logits, write_config, write_model
from tests.grounds.host_reads import HostReads
from tests.grounds.largest_result import LargestResult
from tests.grounds.metrics import read_metrics
from tests.grounds.trainings import NO_PREEMPTION, train_alone, world_of_one
from trainer.checkpoint.__main__ import main
from trainer.checkpoint.interop.initial import read_weights, shapes_of
from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.parallel.parts import tied_names
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.tasks import cross_entropy
from trainer.tasks.attention import AttentionShape
from trainer.tasks.hf import TYPES, HuggingFaceModel
from trainer.tasks.load import load_task
from trainer.train import Trainer

pytestmark = pytest.mark.trains

WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def load(folder: Path, *words: str) -> Any:  # the task
    return load_task(load_config(words=[f"task=hf:{folder}", *words]))


def settings(folder: Path, out: Path, *words: str) -> TrainConfig:
    chats = write_records(out.parent / "chat.jsonl", sums(8))
    plain = ("device=cpu", "report=", "micro_batch=1", "options.context=96", f"data.paths={chats}", f"out={out}")
    return load_config(words=[f"task=hf:{folder}", *plain, *words])


@pytest.mark.parametrize("kind", TYPES)
def test_packed_conversations_do_not_see_each_other(kind: str) -> None:
    """Also beside a window, which some of these types have."""
    model = build(kind, sliding_window=5)
    tokens = torch.randint(3, 290, (1, 24))
    positions = torch.cat((torch.arange(10), torch.arange(14)))[None]
    with torch.no_grad():
        packed = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        alone = [model(input_ids=part, use_cache=False).logits for part in (tokens[:, :10], tokens[:, 10:])]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("window", [24, 25])
@pytest.mark.parametrize("kind", TYPES)
def test_attention_is_that_of_the_model_and_the_host_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, window: int
) -> None:
    write_config(tmp_path, kind, sliding_window=window)
    task = load(tmp_path, "options.context=24")
    model, attend, found = task.build_model(), functional.scaled_dot_product_attention, []

    def attention(query: torch.Tensor, *inputs: Any, **named: Any) -> torch.Tensor:
        _, heads, length, width = query.shape
        found.append(AttentionShape(heads, width, length, is_masked=named["attn_mask"] is not None))
        return attend(query, *inputs, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    tokens = torch.randint(3, 290, (3, 25))
    alone, packed = torch.arange(24).expand(2, 24), torch.cat((torch.arange(10), torch.arange(14)))[None]
    for batch in (tokens, torch.stack((tokens[:, 1:], tokens[:, 1:], torch.cat((alone, packed))), dim=1)):
        found.clear()
        with HostReads() as reads:
            task.loss(model, batch).backward()
        assert max(found, key=lambda shape: shape.is_masked) == task.attention(batch)
        assert reads.found == []


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {"tie_word_embeddings": is_tied}) for kind in TYPES for is_tied in (True, False)),
        ("granite", {"logits_scaling": 3.0}),
        ("gemma3_text", {"final_logit_softcapping": 2.0}),
    ],
)
def test_loss_is_that_of_transformers_without_the_logits_of_all_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, changes: dict[str, object]
) -> None:
    write_config(tmp_path, kind, **changes)
    original, task = build(kind, **changes), load(tmp_path, "options.context=24")
    model = task.build_model()
    model.load_state_dict(original.state_dict())
    batch = torch.randint(3, 290, (4, 25))
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", 7 * TOKENS)
    with LargestResult() as largest:
        loss = task.loss(model, batch)
        loss.backward()
    logits_of_all = batch[:, 1:].numel() * TOKENS
    assert (largest.elements < logits_of_all) != ("final_logit_softcapping" in changes)
    expected = functional.cross_entropy(
        original(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"
    )
    expected.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0.0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, original.get_parameter(name).grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_tied", [True, False])
def test_trained_model_is_exported_as_transformers_loads_it(tmp_path: Path, is_tied: bool) -> None:
    folder, exported = tmp_path / "model", tmp_path / "exported"
    original = write_model(folder, "qwen3", tie_word_embeddings=is_tied)
    train_alone(settings(folder, tmp_path / "out", "steps=2", "lr=1e-4", "optim.weight_decay=0"))
    assert main(["export", str(tmp_path / "out"), str(exported), "--hf"]) == 0
    tokens = torch.arange(3, 60)[None]
    with torch.no_grad():
        before = original(tokens).logits
    after = logits(exported, tokens)
    assert 1e-4 < float((after - before).abs().max()) < 0.5  # bf16, and two small steps
    assert load_file(exported / WEIGHTS).keys() == load_file(folder / WEIGHTS).keys()
    saved = saved_state(tmp_path / "out" / "step_2")["model"]
    model = build("qwen3", tie_word_embeddings=is_tied)
    model.load_state_dict({name: tensor.to(torch.bfloat16) for name, tensor in saved.items()})
    with torch.no_grad():
        torch.testing.assert_close(after, model(tokens).logits, rtol=0.0, atol=0.0)
    assert (exported / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "b"), "--hf", "--shape", str(tmp_path / "no")]) == 2


@pytest.mark.parametrize("words", ["", "lora.rank=2"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_embedding_and_head_are_gathered_by_fsdp2_where_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, *, is_tied: bool
) -> None:
    """The losses, computed in parts, are those of ddp; a weight that is not gathered for its use would be an error of torch."""
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", 7 * TOKENS)
    folder = tmp_path / "model"
    write_model(folder, tie_word_embeddings=is_tied)
    group = initialise("cpu", 60.0, world_of_one())
    losses = []
    try:
        for strategy in ("ddp", "fsdp2"):
            config = settings(folder, tmp_path / strategy, f"strategy={strategy}", "steps=3", *words.split())
            trainer = Trainer(config, group, Progress(group.rank, config.steps), NO_PREEMPTION)
            trainer.run()
            trainer.metrics.close(1)
            losses.append([record["loss"] for record in read_metrics(tmp_path / strategy)])
    finally:
        torch.distributed.destroy_process_group()
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert len(set(losses[0])) == 3


def test_weights_are_those_of_the_folder_and_buffers_stay_exact(tmp_path: Path) -> None:
    original = write_model(tmp_path, tie_word_embeddings=True)
    task: HuggingFaceModel = load(tmp_path)
    model: Any = task.build_model()
    assert task.config.init == str(tmp_path)
    model.load_state_dict(read_weights(tmp_path, shapes_of(model), task, tied_names(model)))
    tokens = torch.arange(3, 60)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, original(tokens).logits, rtol=0.0, atol=1e-5)
    rows = torch.stack((tokens, tokens + 1, torch.cat((torch.arange(20), torch.arange(37)))[None]), dim=1)
    alone = task.loss(model, rows[:, :, :20]) + task.loss(model, rows[:, :, 20:])
    assert float(task.loss(model, rows).detach()) == pytest.approx(float(alone.detach()), rel=1e-5)
    exact = dict(model.named_buffers())
    model.to(torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert all(torch.equal(buffer, exact[name]) for name, buffer in model.named_buffers())
    assert [type(block).__name__ for block in task.blocks(model)] == 2 * ["LlamaDecoderLayer"]


def test_folder_with_missing_or_foreign_tensors_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["strange"] = tensors.pop("model.norm.weight")
    save_file(tensors, tmp_path / WEIGHTS)
    task = load(tmp_path)
    model = task.build_model()
    with pytest.raises(
        UserError, match=rf"^these are not the weights of task=hf:{tmp_path}: model.norm.weight is missing, of shape "
    ) as caught:
        read_weights(tmp_path, shapes_of(model), task)
    assert str(caught.value).endswith(f"{WEIGHTS}: strange is not in the model")
    (tmp_path / WEIGHTS).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"^holds neither model.safetensors nor .* such as .bin, are not read"):
        read_weights(tmp_path, shapes_of(model), task)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory; name a folder on the nodes: nothing is downloaded"),
        ("{", "not valid JSON: "),
        ("[]", "model_type=None: models of type llama, mistral, "),
        ('{"model_type": "mamba", "auto_map": {}}', "model_type=mamba: models of type llama, mistral, "),
        ('{"model_type": "llama", "quantization_config": {"bits": 4}}', "quantization_config: quantized weights can"),
        (
            '{"model_type": "llama", "num_hidden_layers": "x"}',
            'num_hidden_layers="x": a whole number from 1 on is needed',
        ),
        (
            '{"model_type": "llama", "num_attention_heads": 0}',
            "num_attention_heads=0: a whole number from 1 on is needed",
        ),
        (
            '{"model_type": "llama", "hidden_size": 16, "num_attention_heads": 3}',
            "transformers refuses it: Class validation error for validator 'validate_architecture': ValueError: The hidden",
        ),
    ],
)
def test_folder_without_a_known_model_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"task=hf:{tmp_path}: {tmp_path / 'config.json'}: {message}")


def test_model_that_transformers_cannot_build_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, hidden_act="silly")
    task = load(tmp_path)
    with pytest.raises(UserError, match=r"^task=hf:.*config\.json: transformers cannot build it: KeyError: 'silly'$"):
        task.build_model()


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    write_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nclass Model: pass\nclass Config: pass\n")
    assert type(load(tmp_path).build_model()).__name__ == "LlamaForCausalLM"
    assert not (tmp_path / "run").exists()


def test_options_are_checked(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert load(tmp_path).tokens_per_sample == 128
    with pytest.raises(UserError, match=r"^options.context=129: allowed: 1 to 128, the longest of "):
        load(tmp_path, "options.context=129")
    with pytest.raises(UserError, match=r"it takes options.context$"):
        load(tmp_path, "options.width=1")
    with pytest.raises(
        UserError, match=r"^task=hf:: allowed: package.module:Class, .*, or hf:FOLDER, a model of Hugging"
    ):
        load_config(words=["task=hf:"])
