"""The Llama: its numbers are those of transformers, and config.json decides its shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.grounds.llama_logits import RECORDED, TOKENS, VARIANTS, fill
from trainer.config.llama_shape import read_shape, shape_of
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.parallel.building import build_fillable, sizes_of
from trainer.tasks.llama import Llama
from trainer.tasks.llama_model import LlamaModel
from trainer.tasks.load import load_task

LOGITS = json.loads(RECORDED.read_text("utf-8"))["logits"]


def write_shape(folder: Path, **changes: object) -> Path:
    (folder / "config.json").write_text(json.dumps({**VARIANTS["llama"], **changes}))
    return folder


def load(folder: Path, *words: str) -> Any:  # the task
    return load_task(load_config(words=["task=trainer.tasks.llama:Llama", f"options.shape={folder}", *words]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str) -> None:
    model = LlamaModel(shape_of(VARIANTS[variant]))
    fill(model)
    with torch.no_grad():
        torch.testing.assert_close(
            model.logits(torch.tensor(TOKENS)), torch.tensor(LOGITS[variant]), rtol=0.0, atol=1e-5
        )


def test_config_json_of_older_transformers_gives_the_same_shape() -> None:
    config = VARIANTS["llama-3"]
    rope = dict(config["rope_parameters"])
    theta = rope.pop("rope_theta")
    older = {key: value for key, value in config.items() if key != "rope_parameters"}
    shape = shape_of({**older, "rope_theta": theta, "rope_scaling": rope})
    assert (shape.rope_theta, shape.rope_scaling) == (500000.0, (8.0, 1.0, 4.0, 16.0))
    assert shape_of(config).rope_scaling == shape.rope_scaling
    assert shape_of({**older, "rope_scaling": None}).rope_theta == 10000.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "model_type=mixtral: models of type llama, mistral, qwen2, qwen3 can be trained"),
        ({"model_type": None}, "model_type=None: models of type"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu mlp_bias=false: only silu without biases can be trained"),
        ({"mlp_bias": True}, "hidden_act=silu mlp_bias=true: only silu"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_attention: only full"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is no multiple of num_key_value_heads=3"),
        ({"head_dim": 3}, "head_dim=3: rotary positions need an even number"),
        (
            {"model_type": "mistral", "sliding_window": "4096"},
            'sliding_window="4096": a whole number from 1 on is needed',
        ),
        ({"vocab_size": "11"}, 'vocab_size="11": a whole number from 1 on is needed'),
        ({"rms_norm_eps": "x"}, 'rms_norm_eps="x": a number above 0 is needed'),
        ({"rope_theta": 0}, "rope_theta=0: a number above 0 is needed"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type=yarn: default and llama3 can be trained"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "has no 'low_freq_factor'"),
        ({"rope_scaling": 7}, "'int' object is not"),
    ],
)
def test_model_of_another_shape_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = write_shape(tmp_path, **changes) / "config.json"
    with pytest.raises(UserError) as caught:
        read_shape(tmp_path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON: "), ("[]", "holds no mapping of keys to values"), ("{}", "model_type=None: ")],
)
def test_config_json_that_is_no_model_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError) as caught:
        read_shape(tmp_path / "config.json")
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message}")


def test_missing_shape_and_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^options\.shape: name a config\.json of Hugging Face, or a folder"):
        load_task(load_config(words=["task=trainer.tasks.llama:Llama"]))
    with pytest.raises(UserError, match=r"config\.json: cannot be read: No such file or directory$"):
        load(tmp_path / "config.json")


def test_context_is_limited_by_the_model_and_its_window(tmp_path: Path) -> None:
    assert load(write_shape(tmp_path)).context == 64
    assert load(write_shape(tmp_path, max_position_embeddings=131072)).context == 2048
    assert load(tmp_path, "options.context=4096").tokens_per_sample == 4096
    assert load(write_shape(tmp_path, model_type="mistral", sliding_window=16)).context == 16
    assert load(write_shape(tmp_path, model_type="qwen2", sliding_window=16)).context == 64
    assert load(write_shape(tmp_path, model_type="qwen2", sliding_window=16, use_sliding_window=True)).context == 16
    for wrong in ("17", "0.5", "-1", "text"):
        with pytest.raises(UserError, match=rf"^options\.context={wrong}: allowed: 1 to 16, the longest of "):
            load(tmp_path, f"options.context={wrong}")


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(bytes([3, 0] * 40 + [11, 0] * 40))
    samples = load(write_shape(tmp_path), f"data.paths={tmp_path / 'tokens.bin'}", "options.context=16").build_data(
        "train"
    )
    assert samples[0].tolist() == [3] * 17
    with pytest.raises(
        UserError, match=r"11 is no token of vocab_size=11: it has to be the size of the tokenizer that"
    ):
        samples[3]


def test_text_is_refused_for_a_model_that_knows_the_tokens_of_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text " * 100)
    init, data = f"init={tmp_path}", f"data.paths={tmp_path / 'text.txt'}"
    write_shape(tmp_path, vocab_size=300)
    with pytest.raises(
        UserError, match=r"^data\.paths: .*text\.txt: text is read as bytes, which are not tokens of init="
    ):
        load(tmp_path, init, data).build_data("train")
    with pytest.raises(UserError, match=r"^data\.paths: the standard library: text is read as bytes"):
        load(tmp_path, init).build_data("train")
    assert len(load(tmp_path, data).build_data("train")) > 0
    assert len(load(tmp_path, init, data, "data.format=bytes").build_data("train")) > 0
    assert len(load(write_shape(tmp_path, vocab_size=256), init, data).build_data("train")) > 0


@pytest.mark.parametrize(
    ("parameters", "values"),
    [
        # width, feed, layers, heads, key heads, vocabulary, and what else differs; of published models
        (6738415616, ("llama", 4096, 11008, 32, 32, 32, 32000, {})),
        (8030261248, ("llama", 4096, 14336, 32, 32, 8, 128256, {})),
        (1235814400, ("llama", 2048, 8192, 16, 32, 8, 128256, {"tie_word_embeddings": True})),
        (7241732096, ("mistral", 4096, 14336, 32, 32, 8, 32000, {})),
        (494032768, ("qwen2", 896, 4864, 24, 14, 2, 151936, {"tie_word_embeddings": True})),
        (596049920, ("qwen3", 1024, 3072, 28, 16, 8, 151936, {"head_dim": 128, "tie_word_embeddings": True})),
    ],
)
def test_published_models_have_their_number_of_parameters(parameters: int, values: Any) -> None:
    keys = (
        *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "vocab_size"),
    )
    config = {**dict(zip(keys, values[:-1], strict=True)), **values[-1], "max_position_embeddings": 4096}
    with torch.device("meta"):
        model = LlamaModel(shape_of(config))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_any_micro_batches_have_the_same_loss_and_both_heads_learn(tmp_path: Path) -> None:
    batch = torch.tensor(TOKENS)
    for tied in (True, False):
        task: Llama = load(write_shape(tmp_path, tie_word_embeddings=tied))
        model = task.build_model()
        fill(model)
        parts = [batch[:1], batch[1:]]
        total = sum(float(task.loss(model, part).detach()) for part in parts)
        loss = task.loss(model, batch)
        assert float(loss.detach()) == pytest.approx(total, rel=1e-6)
        assert task.count_terms(batch) == 22
        masked = batch[:, 1:].clone()
        masked[1] = -100  # as docs/finetune.md says
        assert float(model(batch[:, :-1], masked).detach()) == pytest.approx(
            float(task.loss(model, batch[:1]).detach()), rel=1e-6
        )
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_it_is_built_in_parts_and_its_arithmetic_is_counted(tmp_path: Path) -> None:
    """Also a tied model, whose head has no parameter."""
    for tied in (True, False):
        task: Llama = load(write_shape(tmp_path, tie_word_embeddings=tied), "options.context=32")
        empty = build_fillable(task, task.config)
        assert empty is not None
        sizes = sizes_of(empty)
        multiplied = sum(sizes.values()) - (0 if tied else 11 * 16)
        assert task.flops_per_sample(sizes) == 32 * (6 * multiplied + 12 * 2 * 16 * 32)
        for name, parameter in empty.named_parameters():
            weight = torch.full(parameter.shape, torch.nan)
            task.initialise(name, weight)
            assert weight.isfinite().all()
