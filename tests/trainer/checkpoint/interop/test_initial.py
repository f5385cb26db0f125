"""init=PATH: every strategy starts from the weights of a file or folder; what does not fit is one message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.grounds.llama_logits import VARIANTS, fill
from tests.grounds.trainings import TINY, train_alone, world_of_one
from trainer.checkpoint.__main__ import main
from trainer.checkpoint.interop.initial import load_initial, shapes_of
from trainer.config.llama_shape import read_shape, shape_of
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.parallel.ddp import Ddp
from trainer.parallel.fsdp import Fsdp2
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.tasks.llama import Llama
from trainer.tasks.llama_model import LlamaModel

pytestmark = pytest.mark.trains

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def weights(variant: str = "llama") -> dict[str, torch.Tensor]:
    model = LlamaModel(shape_of(VARIANTS[variant]))
    fill(model)
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def write_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Two files and their index, as large models of Hugging Face have them."""
    names = list(tensors)
    files = {name: FIRST if number < len(names) // 2 else SECOND for number, name in enumerate(names)}
    for file in (FIRST, SECOND):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(VARIANTS["llama"]))
    write_shards(tmp_path, weights())
    return tmp_path


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """One launched rank."""
    yield initialise("cpu", 60.0, world_of_one())
    torch.distributed.destroy_process_group()


def load(folder: Path, group: Group, kind: Callable[..., Any] = Ddp) -> dict[str, torch.Tensor]:
    """The weights of a strategy that has started from `folder`."""
    config = load_config(words=["task=trainer.tasks.llama:Llama", f"init={folder}"])
    config = replace(config, strategy="fsdp2" if kind is Fsdp2 else "ddp")
    task = Llama(config)
    strategy = kind(group, config, task)
    assert not any(float(tensor.float().sum()) for tensor in strategy.state()["model"].values())  # none was drawn
    load_initial(folder, strategy, task, group)
    state: dict[str, torch.Tensor] = strategy.state()["model"]
    return state


@pytest.mark.parametrize("kind", [Ddp, Fsdp2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_those_of_the_folder(folder: Path, group: Group, kind: Callable[..., Any], dtype: Any) -> None:
    saved = {name: tensor.to(dtype) for name, tensor in weights().items()}
    write_shards(folder, saved)
    loaded = load(folder, group, kind)
    assert set(loaded) == set(saved)
    assert all(torch.equal(loaded[name], saved[name].float()) for name in saved)


def test_names_that_transformers_leaves_out_are_left_out(tmp_path: Path, group: Group) -> None:
    saved = weights("qwen2-tied")
    more = {"lm_head.weight": torch.ones(11, 16), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    save_file({**saved, **more}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(VARIANTS["qwen2-tied"]))
    loaded = load(tmp_path, group)
    assert set(loaded) == set(saved)
    assert torch.equal(loaded["model.embed_tokens.weight"], saved["model.embed_tokens.weight"])


def _replace(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = {**weights(), **({} if tensor is None else {name: tensor})}
    if tensor is None:
        del tensors[name]
    write_shards(folder, tensors)


def _edit_index(folder: Path, **files: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"].update({name.replace("__", "."): file for name, file in files.items()})
    (folder / INDEX).write_text(json.dumps(index))


def _truncate(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-1])


def _without_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def _as_checkpoint(folder: Path) -> None:
    _without_index(folder)
    (folder / "manifest.json").write_text("{}")


def _as_out(folder: Path) -> None:
    _without_index(folder)
    (folder / "step_20").mkdir()
    (folder / "step_20" / "manifest.json").write_text("{}")


def _as_parts(folder: Path) -> None:
    _without_index(folder)
    (folder / "__0_0.distcp").touch()


OTHER_WEIGHTS = "these are not the weights of task=trainer.tasks.llama:Llama: "


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path: _replace(path, "model.norm.weight", None),
            f"{OTHER_WEIGHTS}model.norm.weight is missing, of shape [16]",
        ),
        (
            lambda path: _replace(path, "model.norm.weight", torch.ones(17)),
            f"{OTHER_WEIGHTS}{SECOND}: model.norm.weight has shape [17], the model needs [16]",
        ),
        (
            lambda path: _replace(path, "model.norm.weight", torch.ones(16, dtype=torch.float8_e4m3fn)),
            f"{OTHER_WEIGHTS}{SECOND}: model.norm.weight is of type F8_E4M3: F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL can be",
        ),
        (
            lambda path: _replace(path, "gate.weight", torch.ones(2)),
            f"{OTHER_WEIGHTS}{SECOND}: gate.weight is not in the model",
        ),
        (_truncate, f"{SECOND}: "),
        (lambda path: (path / FIRST).unlink(), f"{FIRST}: cannot be read: No such file or directory"),
        (lambda path: _edit_index(path, gate__weight=FIRST), f"{FIRST}: has no gate.weight, which {INDEX} says it has"),
        (
            lambda path: _edit_index(path, gate__weight="../x"),
            f"{INDEX}: has no weight_map of tensors and files in this",
        ),
        (lambda path: (path / INDEX).write_text("[]"), f"{INDEX}: has no weight_map"),
        (lambda path: (path / INDEX).write_text("{"), f"{INDEX}: has no weight_map"),
        (_without_index, f"holds neither model.safetensors nor {INDEX}; other formats, such as .bin, are not read"),
        (
            lambda path: (path / FIRST).write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
            ),
            f"{FIRST}: a pointer of Git LFS instead of the file, which `git lfs pull` brings",
        ),
        (
            _as_out,
            "holds checkpoints: resume=PATH continues one; python -m trainer.checkpoint export writes the weights",
        ),
        (_as_parts, "has no .metadata, without which *.distcp cannot be read: is the copy whole?"),
        (_as_checkpoint, "this is a checkpoint: resume=PATH continues it; python -m trainer.checkpoint export writes"),
    ],
)
def test_weights_that_do_not_fit_are_one_message_on_all_ranks(
    folder: Path, group: Group, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(UserError) as caught:
        load(folder, group)
    assert str(caught.value).startswith(f"init={folder}: {message}")
    assert caught.value.is_agreed


def test_path_that_the_system_refuses_is_one_message(folder: Path, group: Group) -> None:
    """Its name is too long; a path without permission takes the same way, but root may read everything."""
    path = folder / ("a" * 300)
    with pytest.raises(UserError, match=r"cannot be read: File name too long$"):
        read_shape(path)
    config = load_config(words=["task=trainer.tasks.llama:Llama", f"init={folder}"])
    task = Llama(config)
    with pytest.raises(UserError, match=r"^init=.*a: cannot be read: File name too long$"):
        load_initial(path, Ddp(group, config, task), task, group)


@pytest.mark.parametrize(("kind", "value"), [(Ddp, torch.nan), (Fsdp2, torch.nan), (Ddp, -torch.inf)])
def test_weights_that_are_not_finite_are_named_before_training(
    folder: Path, group: Group, kind: Callable[..., Any], value: float
) -> None:
    tensors = weights()
    tensors["model.layers.1.mlp.up_proj.weight"][1, 2] = value
    write_shards(folder, tensors)
    with pytest.raises(
        UserError, match=rf"^init={folder}: NaN or infinite values in model\.layers\.1\.mlp\.up_proj\.weight: the files"
    ) as caught:
        load(folder, group, kind)
    assert caught.value.is_agreed


def test_three_problems_are_named_and_the_others_counted(folder: Path, group: Group) -> None:
    tensors = weights()
    write_shards(folder, {name: tensors[name] for name in list(tensors)[5:]})
    with pytest.raises(UserError, match=r"embed_tokens.* is missing.*; .* is missing.*; .* is missing.*; and 2 more$"):
        load(folder, group)


def test_shapes_of_a_sharded_model_are_whole(folder: Path, group: Group) -> None:
    config = load_config(words=["task=trainer.tasks.llama:Llama", f"init={folder}", "strategy=fsdp2"])
    strategy = Fsdp2(group, config, Llama(config))
    assert shapes_of(strategy.unwrapped_model) == {name: tuple(tensor.shape) for name, tensor in weights().items()}


def test_a_training_starts_from_the_export_of_another_with_other_data(tmp_path: Path) -> None:
    """The checkpoint counts from then on, also for a model whose weights were drawn by its own code."""
    first, second, exported = tmp_path / "first", tmp_path / "second", tmp_path / "weights.safetensors"
    train_alone(load_config(words=[*TINY, f"out={first}", "steps=2"]))
    assert main(["export", str(first), str(exported)]) == 0
    (tmp_path / "text.txt").write_text("other data " * 100)
    words = [*TINY, f"out={second}", f"init={exported}", f"data.paths={tmp_path / 'text.txt'}", "lr=1e-12", "seed=5"]
    assert train_alone(load_config(words=[*words, "steps=1"])) is not None
    assert main(["export", str(second), str(tmp_path / "again.safetensors")]) == 0
    before, after = load_file(exported), load_file(tmp_path / "again.safetensors")
    assert all(torch.allclose(before[name], after[name], rtol=0, atol=1e-9) for name in before)
    exported.unlink()
    assert train_alone(load_config(words=[*words, "steps=2"])) is not None  # resumes


def test_weights_and_a_checkpoint_to_continue_are_not_named_together() -> None:
    with pytest.raises(UserError, match=r"^init=a starts from weights, resume=b continues a training: name one$"):
        load_config(words=["init=a", "resume=b"])
