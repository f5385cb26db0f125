"""The adapters of a checkpoint: as a folder of peft, and added to the weights beside which they were trained. peft is not needed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Dict, Mapping

import torch

from trainer import safetensors
from trainer.checkpoint.format import files
from trainer.checkpoint.interop.export import saved_weights
from trainer.config.config import HF_TASK
from trainer.errors import UserError
from trainer.io import appearing_whole

ADAPTER = ".default"  # peft's name of the only one
LEFT, RIGHT = f".lora_B{ADAPTER}.weight", f".lora_A{ADAPTER}.weight"


def has_adapters(manifest: Mapping[str, Any]) -> bool:
    return bool(manifest["config"].get("lora", {}).get("rank"))


def merge(
    path: Path, adapters: Mapping[str, torch.Tensor], manifest: Mapping[str, Any], base: Mapping[str, torch.Tensor]
) -> Dict[str, torch.Tensor]:
    """
    Add alpha / rank times the product of each adapter's matrices to its weight, in fp32.

    Raises:
        UserError: an adapter has no weight.
    """
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
    """
    Write the adapters of the checkpoint folder `path` into a new folder, as peft does; returns the number of tensors.

    Raises:
        DamagedError: the checkpoint does not verify.
        UserError: it has no adapters.
        OSError: `target` exists, or cannot be written.
    """
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    manifest, weights = saved_weights(path, averaged=averaged)
    if not has_adapters(manifest):
        raise UserError(f"{path}: has no adapters, because lora.rank was not set: use --hf")
    tensors = {f"base_model.model.{name.replace(f'{ADAPTER}.', '.')}": tensor for name, tensor in weights.items()}
    with appearing_whole(target) as temporary:
        temporary.mkdir()
        (temporary / "adapter_config.json").write_text(json.dumps(_config(manifest), indent=2) + "\n", "utf-8")
        with (temporary / "adapter_model.safetensors").open("wb") as file:
            safetensors.write(file, tensors, {"format": "pt"})
            files.flush_to_disk(file)
    return len(tensors)


def _config(manifest: Mapping[str, Any]) -> Dict[str, Any]:
    lora = manifest["config"]["lora"]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": manifest["config"]["task"][len(HF_TASK) :],
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "target_modules": lora["targets"],
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
