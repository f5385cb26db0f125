"""The weights of a Llama's checkpoint as a folder of Hugging Face: bf16 safetensors, config.json, files of the tokenizer."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, Mapping

import torch

from trainer import safetensors
from trainer.checkpoint import files
from trainer.checkpoint.export import saved_weights
from trainer.checkpoint.initial import INDEX_FILE, WEIGHTS_FILE, shapes_of
from trainer.errors import UserError
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


def export_folder(path: Path, target: Path, shape: Path | None, shard_bytes: int = SHARD_BYTES) -> int:
    """
    Write the weights of the checkpoint folder `path` into a new folder.

    Args:
        path: step_N.
        target: must not exist.
        shape: config.json or its folder; by default that of the training.
        shard_bytes: the most bytes of tensors in a file, unless one tensor has more.

    Returns:
        The number of tensors.

    Raises:
        DamagedError: the checkpoint does not verify.
        UserError: it is not that of a model of this shape.
        OSError: `target` exists, or cannot be written.
    """
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    manifest, weights = saved_weights(path)
    source = shape or _trained_shape(path, manifest["config"])
    config = _check(path, weights, source)
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    temporary.mkdir()
    try:
        _write_shards(temporary, weights, shard_bytes)
        (temporary / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        folder = source if source.is_dir() else source.parent
        for name in TOKENIZER_FILES:
            if (folder / name).is_file():
                shutil.copyfile(str(folder / name), str(temporary / name))
        temporary.replace(target)
    except OSError:
        shutil.rmtree(str(temporary), ignore_errors=True)
        raise
    return len(weights)


def _trained_shape(path: Path, config: Mapping[str, Any]) -> Path:
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
    for name in sorted({*needed, *found}):
        if needed.get(name) != found.get(name):
            shapes = f"{found.get(name, 'missing')} in the checkpoint, {needed.get(name, 'missing')} by {source}"
            raise UserError(
                f"{path}: not the weights of {source}: {name} is {shapes}; name its {CONFIG_FILE} by --shape"
            )
    family = str(shape.raw["model_type"])
    config = {"architectures": [ARCHITECTURES[family]], **shape.raw, "dtype": "bfloat16"}
    config.pop("torch_dtype", None)  # the older name of dtype
    return config


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
