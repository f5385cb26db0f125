"""The weights of a checkpoint as a folder of Hugging Face: bf16 safetensors, config.json, files of the tokenizer."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

import torch

from trainer import safetensors
from trainer.checkpoint.format import files
from trainer.checkpoint.interop import lora
from trainer.checkpoint.interop.export import saved_weights
from trainer.checkpoint.interop.initial import INDEX_FILE, WEIGHTS_FILE, digest_of, read_tensors, shapes_of
from trainer.config.config import HF_TASK
from trainer.errors import UserError
from trainer.io import appearing_whole
from trainer.tasks.llama_model import LlamaModel
from trainer.tasks.llama_shape import CONFIG_FILE, read_shape

SHARD_BYTES = 5_000_000_000  # as transformers has it
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
}  # fmt: skip
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"),
)


def export_folder(
    path: Path, target: Path, shape: Path | None, shard_bytes: int = SHARD_BYTES, *, averaged: bool = True
) -> int:
    """
    Write the weights of the checkpoint folder `path` into a new folder.

    Args:
        path: step_N.
        target: must not exist.
        shape: config.json or its folder; by default that of the training.
        shard_bytes: the most bytes of tensors in a file, unless one tensor has more.
        averaged: write the averages of the weights, if there are any.

    Returns:
        The number of tensors.

    Raises:
        DamagedError: the checkpoint does not verify.
        UserError: it is not that of a model of this shape.
        OSError: `target` exists, or cannot be written.
    """
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    manifest, weights = saved_weights(path, averaged=averaged)
    source = shape or _trained_shape(path, manifest["config"])
    if str(manifest["config"]["task"]).startswith(HF_TASK):
        base = read_base(path, manifest, shape)
        merged = lora.merge(path, weights, manifest, base) if lora.has_adapters(manifest) else weights
        config, weights = _read_config(source), _matching(path, merged, base, source)
    else:
        config = _check(path, weights, source)
    with appearing_whole(target) as temporary:
        temporary.mkdir()
        _write_shards(temporary, weights, shard_bytes)
        (temporary / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        folder = source if source.is_dir() else source.parent
        for name in TOKENIZER_FILES:
            if (folder / name).is_file():
                shutil.copyfile(str(folder / name), str(temporary / name))
    return len(weights)


def _trained_shape(path: Path, config: Mapping[str, Any]) -> Path:
    if str(config["task"]).startswith(HF_TASK):
        return Path(config["task"][len(HF_TASK) :]).expanduser()
    named = config["options"].get("shape") or config.get("init")
    if not named:
        raise UserError(f"{path}: task={config['task']} has no {CONFIG_FILE}: leave out --hf, or name one by --shape")
    return Path(named).expanduser()


def _check(path: Path, weights: Mapping[str, torch.Tensor], source: Path) -> Dict[str, Any]:
    """Return the contents of config.json. Raises UserError: the weights are of another shape."""
    shape = read_shape(source)
    with torch.device("meta"):
        needed = shapes_of(LlamaModel(shape))
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    _compare(path, needed, found, source)
    family = str(shape.raw["model_type"])
    config = {"architectures": [ARCHITECTURES[family]], **shape.raw, "dtype": "bfloat16"}
    config.pop("torch_dtype", None)  # the older name of dtype
    return config


def read_base(path: Path, manifest: Mapping[str, Any], shape: Path | None) -> Dict[str, torch.Tensor]:
    """
    The weights from which the training of task=hf:FOLDER began, mapped from their files.

    Args:
        path: step_N.
        manifest: of step_N.
        shape: the folder, if it is not where the training found it.

    Raises:
        UserError: they cannot be read, or those of adapters are not the ones beside which they were trained.
    """
    source = shape or Path(manifest["config"]["init"]).expanduser()
    try:
        base, digest = read_tensors(source), digest_of(source) if "base_sha256" in manifest else None
    except OSError as exc:
        raise UserError(f"{source}: cannot be read: {exc.strerror}; name the folder of the model by --shape") from exc
    except (UserError, ValueError) as exc:
        raise UserError(f"{source}: {exc}; name the folder of the model by --shape") from exc
    if digest != manifest.get("base_sha256"):
        raise UserError(
            f"{path}: has adapters of other weights than those in {source}: sha256 {manifest['base_sha256'][:12]}, there "
            f"{str(digest)[:12]}; name the folder of the model by --shape"
        )
    return base


def _read_config(source: Path) -> Dict[str, Any]:
    path = source / CONFIG_FILE if source.is_dir() else source
    try:
        config: Dict[str, Any] = json.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise UserError(f"{path}: cannot be read: {exc.strerror}; name the folder of the model by --shape") from exc
    except ValueError as exc:
        raise UserError(f"{path}: not valid JSON: {exc}") from exc
    config["dtype"] = "bfloat16"
    config.pop("torch_dtype", None)  # the older name of dtype
    return config


def _matching(
    path: Path, weights: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor], source: Path
) -> Dict[str, torch.Tensor]:
    """The weights that are in the files of the base, too. Raises UserError: one of either side is not in the other."""
    kept = {name: weights[name] for name in base if name in weights}
    addresses = {tensor.data_ptr() for tensor in kept.values()}  # a tied weight has a second name in the checkpoint
    found = {
        name: tuple(weight.shape)
        for name, weight in weights.items()
        if name in base or weight.data_ptr() not in addresses
    }
    _compare(path, {name: tuple(weight.shape) for name, weight in base.items()}, found, source)
    return kept


def _compare(
    path: Path, needed: Mapping[str, Tuple[int, ...]], found: Mapping[str, Tuple[int, ...]], source: Path
) -> None:
    for name in sorted({*needed, *found}):
        if needed.get(name) != found.get(name):
            shapes = f"{found.get(name, 'missing')} in the checkpoint, {needed.get(name, 'missing')} by {source}"
            raise UserError(
                f"{path}: not the weights of {source}: {name} is {shapes}; name its {CONFIG_FILE} by --shape"
            )


def _write_shards(folder: Path, weights: Mapping[str, torch.Tensor], shard_bytes: int) -> None:
    shards: List[List[str]] = [[]]
    size = total = 0
    for name, tensor in weights.items():
        tensor_bytes = 2 * tensor.numel()
        if shards[-1] and size + tensor_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size, total = size + tensor_bytes, total + tensor_bytes
    file_of: Dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file_name = WEIGHTS_FILE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        with (folder / file_name).open("wb") as file:
            safetensors.write(file, {name: weights[name].to(torch.bfloat16) for name in names}, {"format": "pt"})
            files.flush_to_disk(file)
        file_of.update(dict.fromkeys(names, file_name))
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": file_of}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
