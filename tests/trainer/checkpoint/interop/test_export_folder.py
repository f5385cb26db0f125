"""`export --hf`: what was trained is a folder of Hugging Face, from which a training can start again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.grounds import hf_models
from tests.grounds.checkpoints import Session
from tests.grounds.llama_logits import TOKENS, VARIANTS
from tests.grounds.trainings import train_alone
from tests.trainer.checkpoint.interop.test_initial import INDEX, weights, write_shards
from trainer.checkpoint.__main__ import main
from trainer.checkpoint.interop.export import export_folder
from trainer.checkpoint.interop.initial import read_weights, shapes_of
from trainer.config.llama_shape import read_shape
from trainer.config.load import load_config
from trainer.tasks.llama import Llama
from trainer.tasks.llama_model import LlamaModel

VARIANT = "qwen2-tied"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**VARIANTS[VARIANT], "torch_dtype": "float32", "extra": 1}))
    (folder / "tokenizer.json").write_text("{}")
    write_shards(folder, weights(VARIANT))
    return folder


def train(source: Path, out: Path) -> None:
    """One step from the weights in `source`."""
    data = source / "tokens.bin"
    data.write_bytes(bytes(value for number in range(400) for value in (number % 11, 0)))
    words = f"task=trainer.tasks.llama:Llama init={source} options.context=16 data.paths={data} out={out}"
    train_alone(load_config(words=[*words.split(), "steps=1", "device=cpu", "report=", "micro_batch=2", "lr=0.01"]))


def logits(folder: Path) -> torch.Tensor:
    """The logits of the model that a training starts from `folder` with."""
    model = LlamaModel(read_shape(folder))
    task = Llama(load_config(words=["task=trainer.tasks.llama:Llama", f"init={folder}"]))
    model.load_state_dict(read_weights(folder, shapes_of(model), task))
    with torch.no_grad():
        return model.logits(torch.tensor(TOKENS))


def test_a_step_from_weights_is_exported_with_config_and_tokenizer(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, target = tmp_path / "out", tmp_path / "target"
    train(source, out)
    assert main(["export", str(out), str(tmp_path / "fp32.safetensors")]) == 0
    assert main(["export", "--hf", str(out), str(target)]) == 0
    assert f"wrote 26 tensors of {out / 'step_1'} to {target}\n" in capsys.readouterr().out
    trained, exported = load_file(tmp_path / "fp32.safetensors"), load_file(target / "model.safetensors")
    assert set(trained) == set(exported) == set(weights(VARIANT))
    assert all(torch.equal(exported[name], trained[name].to(torch.bfloat16)) for name in trained)
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    expected = {"architectures": ["Qwen2ForCausalLM"], **VARIANTS[VARIANT], "extra": 1, "dtype": "bfloat16"}
    assert json.loads((target / "config.json").read_text()) == expected
    model = LlamaModel(read_shape(target))
    model.load_state_dict({name: tensor.to(torch.bfloat16) for name, tensor in trained.items()})
    with torch.no_grad():
        assert torch.equal(model.logits(torch.tensor(TOKENS)), logits(target))
    assert not torch.allclose(logits(source), logits(target), atol=1e-2)  # it was trained
    # in several files
    assert export_folder(out / "step_1", tmp_path / "shards", None, shard_bytes=1000) == 26
    index = json.loads((tmp_path / "shards" / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(2 * tensor.numel() for tensor in trained.values())
    names = set(index["weight_map"].values())
    assert len(names) > 2
    for tensors in (load_file(tmp_path / "shards" / name) for name in names):
        assert len(tensors) == 1 or sum(2 * tensor.numel() for tensor in tensors.values()) <= 1000
    assert torch.equal(logits(tmp_path / "shards"), logits(target))
    # in fp32
    assert main(["export", "--hf", "--precision", "fp32", str(out), str(tmp_path / "fp32")]) == 0
    exact = load_file(tmp_path / "fp32" / "model.safetensors")
    assert all(torch.equal(exact[name], trained[name]) for name in trained)
    assert json.loads((tmp_path / "fp32" / "config.json").read_text()) == {**expected, "dtype": "float32"}
    # of another shape
    (source / "config.json").write_text(json.dumps({**VARIANTS[VARIANT], "intermediate_size": 25}))
    assert main(["export", "--hf", str(out), str(tmp_path / "wrong"), "--shape", str(source)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"error: {out / 'step_1'}: not the weights of {source}: model.layers.0.mlp.down_proj.weight"
    )
    assert "is (16, 24) in the checkpoint, (16, 25) by " in error
    assert main(["export", "--hf", str(out), str(target), "--shape", str(target)]) == 2
    assert capsys.readouterr().err == f"error: {target}: cannot be written: File exists\n"
    assert list(tmp_path.glob("*.tmp-*")) == []
    tokens = torch.tensor(TOKENS)
    assert torch.equal(hf_models.logits(tmp_path / "shards", tokens), hf_models.logits(target, tokens))


def test_a_model_without_config_json_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Session.start(tmp_path / "out").train_and_save(1)
    assert main(["export", "--hf", str(tmp_path / "out"), str(tmp_path / "target")]) == 2
    message = "task=trainer.tasks.gpt:Gpt has no config.json: leave out --hf, or name one by --shape\n"
    assert capsys.readouterr().err.endswith(message)
    assert main(["export", str(tmp_path / "out"), "--shape", "a"]) == 2
    assert capsys.readouterr().err == "error: --shape goes with --hf\n"
    assert main(["export", str(tmp_path / "out"), "--precision", "bf16"]) == 2
    assert capsys.readouterr().err == "error: --precision goes with --hf\n"
