"""LoRA: adapters alone are trained, saved and resumed, beside weights that must not change, and exported in two forms."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.grounds import components
from tests.grounds.checkpoints import saved_state
from tests.grounds.hf_models import build, logits, write_model
from tests.grounds.live_memory import rank_among
from tests.grounds.metrics import read_metrics
from tests.grounds.trainings import process_group, train_alone, train_in
from tests.trainer.tasks.test_hf import _cache, settings
from trainer.checkpoint.__main__ import main
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.parallel.fsdp import Fsdp2, units
from trainer.tasks.load import load_task
from trainer.tasks.lora import frozen_weights

pytestmark = pytest.mark.trains

LLAMA = "task=trainer.tasks.llama:Llama"
LORA = ("lora.rank=2", "lora.alpha=8", "lora.targets=q_proj,down_proj", "optim.weight_decay=0", "lr=0.05")

__all__ = ["_cache"]


@pytest.fixture(autouse=True)
def _peft() -> None:
    components.module("peft")


def run(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Train and return the weights of the checkpoint and its manifest."""
    train_alone(settings(tmp_path / "model", tmp_path / "out", *LORA, *words))
    newest = max(tmp_path.glob("*/step_*"), key=lambda path: int(path.name[5:]))
    return {**saved_state(newest), "manifest": json.loads((newest / "manifest.json").read_text())}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers for it
def test_adapters_are_trained_saved_and_exported_in_both_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = write_model(tmp_path / "model", tie_word_embeddings=True)
    saved = run(tmp_path, "steps=3")
    trained = sum(tensor.numel() for tensor in saved["model"].values())
    whole = trained + sum(parameter.numel() for parameter in original.parameters())
    assert f"model {whole} parameters, {trained} of them trained, " in capsys.readouterr().out
    assert sorted(saved["model"]) == sorted(
        f"model.layers.{layer}.{module}.lora_{part}.default.weight"
        for layer in (0, 1)
        for module in ("self_attn.q_proj", "mlp.down_proj")
        for part in "AB"
    )
    assert len(saved["moments"]) == len(saved["model"])
    assert all(tensor.any() for tensor in saved["model"].values())
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "adapter"), "--adapter"]) == 0
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "merged"), "--hf"]) == 0
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "fp32"), "--hf", "--precision", "fp32"]) == 0
    tokens = torch.arange(3, 60)[None]
    peft: Any = importlib.import_module("peft")
    adapted = peft.PeftModel.from_pretrained(build(tie_word_embeddings=True), tmp_path / "adapter")
    with torch.no_grad():
        theirs, before = adapted(tokens).logits, original(tokens).logits
    assert float((theirs - before).abs().max()) > 0.1
    torch.testing.assert_close(logits(tmp_path / "merged", tokens), theirs, rtol=0.02, atol=0.05)  # bf16
    merged: Any = adapted.merge_and_unload()
    for name, tensor in load_file(tmp_path / "merged" / "model.safetensors").items():
        assert torch.equal(tensor, merged.state_dict()[name].to(torch.bfloat16)), name
    for name, tensor in load_file(tmp_path / "fp32" / "model.safetensors").items():
        assert torch.equal(tensor, merged.state_dict()[name]), name
    assert json.loads((tmp_path / "fp32" / "config.json").read_text())["dtype"] == "float32"
    torch.testing.assert_close(logits(tmp_path / "fp32", tokens), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(("strategy", "tied"), [("ddp", True), ("fsdp2", True), ("fsdp2", False)])
def test_adapters_of_the_llama_are_those_of_peft(tmp_path: Path, strategy: str, *, tied: bool) -> None:
    """Started, resumed and exported; peft adds the same to the model of transformers."""
    folder, out = tmp_path / "model", tmp_path / "out"
    write_model(folder, tie_word_embeddings=tied)
    words = (LLAMA, f"init={folder}", f"strategy={strategy}", "precision=bf16", *LORA, "optim.schedule_steps=4")
    for steps in (2, 4):
        with process_group(needed=strategy != "ddp") as group:
            train_in(group, settings(folder, out, *words, f"steps={steps}"))
    assert all(tensor.any() for tensor in saved_state(out / "step_4")["model"].values())
    assert main(["export", str(out), str(tmp_path / "adapter"), "--adapter"]) == 0
    assert main(["export", str(out), str(tmp_path / "merged"), "--hf", "--precision", "fp32"]) == 0
    peft: Any = importlib.import_module("peft")
    adapted = peft.PeftModel.from_pretrained(build(tie_word_embeddings=tied), tmp_path / "adapter")
    merged, found = adapted.merge_and_unload().state_dict(), load_file(tmp_path / "merged" / "model.safetensors")
    assert merged.keys() - found.keys() == ({"lm_head.weight"} if tied else set())
    for name, tensor in found.items():
        assert torch.equal(tensor, merged[name]), name
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(folder)


def test_frozen_weights_of_a_sharded_llama_have_the_type_of_its_products(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    words = (LLAMA, f"init={tmp_path / 'model'}", "strategy=fsdp2", "precision=bf16", *LORA)
    config = settings(tmp_path / "model", tmp_path / "out", *words)
    with rank_among(4) as group:
        strategy = Fsdp2(group, config, load_task(config))
    assert {weight.dtype for weight in frozen_weights(strategy.unwrapped_model).values()} == {torch.bfloat16}
    assert {weight.dtype for weight in strategy.unwrapped_model.parameters()} == {torch.float32}


def test_adapters_of_the_llama_lower_the_loss_as_those_of_transformers(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    losses = []
    for number, words in enumerate([(), (LLAMA, f"init={tmp_path / 'model'}")]):
        run(tmp_path, "steps=8", f"out={tmp_path / str(number)}", *words)
        losses.append([record["loss"] for record in read_metrics(tmp_path / str(number))])
    theirs, ours = losses
    assert ours[0] == pytest.approx(theirs[0], abs=1e-4)  # nothing is added before the first step
    assert ours[-1] < ours[0] - 0.1
    assert ours[-1] == pytest.approx(theirs[-1], abs=0.1)  # other first values


def test_resumed_adapters_repeat_an_uninterrupted_run(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    for folder, parts in (("whole", ("4",)), ("parts", ("2", "4"))):
        for steps in parts:
            out = tmp_path / folder
            train_alone(settings(tmp_path / "model", out, *LORA, f"steps={steps}", "optim.schedule_steps=4"))
    states = [saved_state(tmp_path / folder / "step_4")["model"] for folder in ("whole", "parts")]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_other_frozen_weights_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    run(tmp_path, "steps=1")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] += 1e-3
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(
        UserError, match=r"adapters of other frozen weights than init=.*: sha256 \w{12} -> \w{12} \(saved"
    ):
        run(tmp_path, "steps=2")
    with pytest.raises(UserError, match=r"does not fit: lora.rank: 2 -> 4 \(saved -> now\)"):
        run(tmp_path, "steps=2", "lora.rank=4")
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "merged"), "--hf"]) == 2


def test_frozen_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"NaN or infinite values in model\.layers\.0\.self_attn\.q_proj\.weight: "):
        run(tmp_path, "steps=1")


def test_blocks_with_adapters_are_sharded_one_by_one(tmp_path: Path) -> None:
    write_model(tmp_path, tie_word_embeddings=True)
    task = load_task(load_config(words=[f"task=hf:{tmp_path}", "lora.rank=2"]))
    model = task.build_model()
    assert units(model, task.blocks(model), task.ends(model)) == [[block] for block in task.blocks(model)]
    assert sum(weight.numel() for weight in frozen_weights(model).values()) == sum(
        parameter.numel() for parameter in build(tie_word_embeddings=True).parameters()
    )


def test_unknown_target_names_the_layers_there_are(tmp_path: Path) -> None:
    write_model(tmp_path)
    task = load_task(load_config(words=[f"task=hf:{tmp_path}", "lora.rank=2", "lora.targets=q_proj,qkv,head"]))
    with pytest.raises(UserError) as caught:
        task.build_model()
    assert str(caught.value) == (
        "lora.targets=q_proj,qkv,head: the model has no linear layer qkv, head; it has down_proj, gate_proj, k_proj, o_proj, q_proj, "
        "up_proj, v_proj"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lora.alpha=4"], "lora.alpha and lora.targets need lora.rank, such as lora.rank=8"),
        (
            ["lora.rank=4"],
            "lora.rank=4 goes with task=hf:FOLDER or trainer.tasks.llama:Llama, not trainer.tasks.gpt:Gpt",
        ),
        (["lora.rank=4", LLAMA], "lora.rank=4: name by init= the weights beside which adapters are trained"),
        (
            ["lora.rank=4", "task=hf:a", "strategy=zero3"],
            "lora.rank=4 strategy=zero3 goes with task=trainer.tasks.llama:Llama init=FOLDER: DeepSpeed does not split",
        ),
        (["lora.rank=4", "task=hf:a", "lora.targets="], "lora.targets is empty: name linear layers"),
        (["lora.rank=0"], "lora.rank=0: allowed: a whole number >= 1"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(words=words)
    assert str(caught.value).startswith(message)


def test_adapters_of_a_whole_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "model")
    train_alone(settings(tmp_path / "model", tmp_path / "out", "steps=1"))
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "adapter"), "--adapter"]) == 2
    assert "step_1: has no adapters, because lora.rank was not set: use --hf" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "adapter"), "--adapter", "--hf"]) == 2
