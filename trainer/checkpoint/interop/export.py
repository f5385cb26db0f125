"""
`python -m trainer.checkpoint export`: the weights of a checkpoint as one safetensors file, or as a folder of Hugging Face, peft or
torch.distributed.checkpoint. Neither safetensors nor peft is needed.

Each form has a function that writes the checkpoint folder `path`, step_N, to `target`, and returns the number of tensors: the averages
of the weights if there are any and `averaged`. It raises DamagedError if the checkpoint does not verify, UserError if that is not a
training state or does not have this form, and OSError if `target` exists or cannot be written.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

import torch

from trainer import safetensors
from trainer.checkpoint.format import files
from trainer.checkpoint.format.files import Checkpoint
from trainer.checkpoint.interop.initial import INDEX_FILE, WEIGHTS_FILE, digest_of, read_tensors, shapes_of
from trainer.checkpoint.load.sharded import read_weights
from trainer.checkpoint.load.state_pt import load_state, named
from trainer.config.config import HF_TASK
from trainer.config.llama_shape import CONFIG_FILE, read_json, read_shape
from trainer.errors import UserError
from trainer.io import appearing_whole
from trainer.safetensors import DTYPES
from trainer.state_keys import EMA
from trainer.tasks.llama_model import LlamaModel

SHARD_BYTES = 5_000_000_000  # as transformers has it
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
}  # fmt: skip
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"),
)
ADAPTER = ".default"  # peft's name of the only one
LEFT, RIGHT = f".lora_B{ADAPTER}.weight", f".lora_A{ADAPTER}.weight"


def export(path: Path, target: Path, *, averaged: bool = True) -> int:
    """As one safetensors file."""
    manifest, weights = _weights_for(target, path, averaged=averaged)
    unsupported = {name: getattr(tensor, "dtype", type(tensor).__name__) for name, tensor in weights.items()}
    unsupported = {name: kind for name, kind in unsupported.items() if kind not in DTYPES}
    if unsupported:
        listed = ", ".join(f"{name} ({kind})" for name, kind in unsupported.items())
        kinds = ", ".join(str(dtype).rpartition(".")[2] for dtype in DTYPES)
        raise UserError(f"{path}: export writes tensors of {kinds}, not {listed}")
    metadata = {"format": "pt", "step": str(manifest["step"]), "config": json.dumps(manifest["config"])}
    with appearing_whole(target) as temporary, files.create(temporary) as file:
        safetensors.write(file, weights, metadata)
        files.flush_to_disk(file)
    return len(weights)


def _weights_for(target: Path, path: Path, *, averaged: bool) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """The manifest and the weights, or their averages."""
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    manifest = files.verify(path, files.step_of(path))
    if manifest["version"] == files.VERSION:
        return manifest, read_weights(Checkpoint(path, manifest), averaged=averaged)
    with (path / "state.pt").open("rb") as file:
        state = load_state(file, path.name)
    if not averaged or not manifest["config"]["optim"].get("ema"):
        return manifest, state["model"]
    moments = named(state, manifest["sizes"], keep_scale=False, keep_ema=True)["moments"]
    averages = {name: values[EMA] for name, values in moments.items() if EMA in values}
    aliases = {alias: averages[name] for alias, name in manifest["aliases"].items() if name in averages}
    return manifest, {**state["model"], **averages, **aliases}


def export_dcp(path: Path, target: Path, *, averaged: bool = True) -> int:
    """As a folder that torch.distributed.checkpoint.load reads."""
    # imported here: it takes a second, and torch 1.10 has none of it
    error: Any = importlib.import_module("torch.distributed.checkpoint.api").CheckpointException
    writer: Any = importlib.import_module("torch.distributed.checkpoint.filesystem").FileSystemWriter
    save: Any = importlib.import_module("torch.distributed.checkpoint.state_dict_saver").save
    _, weights = _weights_for(target, path, averaged=averaged)
    try:
        with appearing_whole(target) as temporary, warnings.catch_warnings():
            temporary.mkdir()
            warnings.simplefilter("ignore")  # of a process alone
            save(weights, storage_writer=writer(str(temporary)))
    except error as exc:
        causes = [str(failure[0]) for failure in exc.failures.values()]
        raise UserError(f"{target}: cannot be written: {'; '.join(causes)}") from exc
    return len(weights)


def export_folder(
    path: Path,
    target: Path,
    shape: Path | None,
    *,
    precision: str = "bf16",
    shard_bytes: int = SHARD_BYTES,
    averaged: bool = True,
) -> int:
    """
    As a folder of Hugging Face: safetensors, config.json, files of the tokenizer.

    Args:
        path, target, averaged: as in every form.
        shape: config.json or its folder; by default that of the training.
        precision: of the weights, one of PRECISIONS.
        shard_bytes: the most bytes of tensors in a file, unless one tensor has more.
    """
    manifest, weights = _weights_for(target, path, averaged=averaged)
    source = shape or _trained_shape(path, manifest["config"])
    of_transformers, has_adapters = str(manifest["config"]["task"]).startswith(HF_TASK), _has_adapters(manifest)
    base = _read_base(path, manifest, shape) if of_transformers or has_adapters else {}
    if has_adapters:
        weights = _merge_adapters(path, weights, manifest, base)
    if of_transformers:
        config = read_json(source, remedy="; name the folder of the model by --shape")
        weights = _matching(path, weights, base, source)
    else:
        config, weights = _check(path, weights, source, base=base)
    with appearing_whole(target) as temporary:
        temporary.mkdir()
        _write_shards(temporary, weights, PRECISIONS[precision], shard_bytes)
        kept = {key: value for key, value in config.items() if key != "torch_dtype"}  # the older name of dtype
        config = {**kept, "dtype": str(PRECISIONS[precision]).rpartition(".")[2]}
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


def _check(
    path: Path, weights: Mapping[str, torch.Tensor], source: Path, base: Mapping[str, torch.Tensor]
) -> Tuple[Dict[str, Any], Dict[str, torch.Tensor]]:
    """
    Return the contents of config.json and the model's weights, of which files may have more (`base`).
    Raises UserError: the weights are of another shape.
    """
    shape = read_shape(source)
    with torch.device("meta"):
        needed = shapes_of(LlamaModel(shape))
    kept = {name: tensor for name, tensor in weights.items() if name in needed or name not in base}
    _compare(path, needed, {name: tuple(tensor.shape) for name, tensor in kept.items()}, source)
    return {"architectures": [ARCHITECTURES[str(shape.raw["model_type"])]], **shape.raw}, kept


def _read_base(path: Path, manifest: Mapping[str, Any], shape: Path | None) -> Dict[str, torch.Tensor]:
    """
    The weights from which the training began, mapped from their files; `shape`: the folder where these are now, if not there.

    Raises:
        UserError: they cannot be read, or those of adapters are not the ones beside which they were trained.
    """
    source = shape if shape and shape.is_dir() else Path(manifest["config"]["init"]).expanduser()
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


def _write_shards(folder: Path, weights: Mapping[str, torch.Tensor], dtype: torch.dtype, shard_bytes: int) -> None:
    shards: List[List[str]] = [[]]
    size = total = 0
    number_bytes = torch.empty((), dtype=dtype).element_size()
    for name, tensor in weights.items():
        tensor_bytes = number_bytes * tensor.numel()
        if shards[-1] and size + tensor_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size, total = size + tensor_bytes, total + tensor_bytes
    file_of: Dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file_name = WEIGHTS_FILE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        with (folder / file_name).open("wb") as file:
            safetensors.write(file, {name: weights[name].to(dtype) for name in names}, {"format": "pt"})
            files.flush_to_disk(file)
        file_of.update(dict.fromkeys(names, file_name))
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": file_of}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _has_adapters(manifest: Mapping[str, Any]) -> bool:
    return bool(manifest["config"].get("lora", {}).get("rank"))


def _merge_adapters(
    path: Path, adapters: Mapping[str, torch.Tensor], manifest: Mapping[str, Any], base: Mapping[str, torch.Tensor]
) -> Dict[str, torch.Tensor]:
    """Add alpha / rank times the product of each adapter's matrices to its weight, in fp32."""
    lora, merged = manifest["config"]["lora"], dict(base)
    for name, left in adapters.items():
        if name.endswith(LEFT):
            module = name[: -len(LEFT)]
            if f"{module}.weight" not in base:
                raise UserError(f"{path}: {module}.weight, which has an adapter, is not in the files of the model")
            change = left.float() @ adapters[f"{module}{RIGHT}"].float()
            merged[f"{module}.weight"] = base[f"{module}.weight"].float() + lora["alpha"] / lora["rank"] * change
    return merged


def export_adapter(path: Path, target: Path, *, averaged: bool = True) -> int:
    """As a folder of peft."""
    manifest, weights = _weights_for(target, path, averaged=averaged)
    if not _has_adapters(manifest):
        raise UserError(f"{path}: has no adapters, because lora.rank was not set: use --hf")
    tensors = {f"base_model.model.{name.replace(f'{ADAPTER}.', '.')}": tensor for name, tensor in weights.items()}
    lora, task = manifest["config"]["lora"], str(manifest["config"]["task"])
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": task[len(HF_TASK) :] if task.startswith(HF_TASK) else manifest["config"]["init"],
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "target_modules": lora["targets"],
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    with appearing_whole(target) as temporary:
        temporary.mkdir()
        (temporary / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        with (temporary / "adapter_model.safetensors").open("wb") as file:
            safetensors.write(file, tensors, {"format": "pt"})
            files.flush_to_disk(file)
    return len(tensors)
