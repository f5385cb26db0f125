"""The weights of a checkpoint as one safetensors file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

from trainer import safetensors
from trainer.checkpoint.format import files
from trainer.checkpoint.format.files import Checkpoint
from trainer.checkpoint.format.named import named
from trainer.checkpoint.load.sharded import read_weights
from trainer.checkpoint.load.whole import load_state
from trainer.errors import UserError
from trainer.io import appearing_whole
from trainer.safetensors import DTYPES
from trainer.state_keys import EMA


def export(path: Path, target: Path, *, averaged: bool = True) -> int:
    """
    Write the weights of the checkpoint folder `path`, or their averages if there are any and `averaged`.

    Returns:
        The number of tensors.

    Raises:
        DamagedError: it does not verify.
        UserError: it verifies, but is not a training state, or holds tensors of unsupported types.
        OSError: `target` exists, or cannot be written.
    """
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    manifest, weights = saved_weights(path, averaged=averaged)
    unsupported = {name: getattr(tensor, "dtype", type(tensor).__name__) for name, tensor in weights.items()}
    unsupported = {name: kind for name, kind in unsupported.items() if kind not in DTYPES}
    if unsupported:
        listed = ", ".join(f"{name} ({kind})" for name, kind in unsupported.items())
        raise UserError(f"{path}: export writes tensors of {_kinds()}, not {listed}")
    metadata = {"format": "pt", "step": str(manifest["step"]), "config": json.dumps(manifest["config"])}
    with appearing_whole(target) as temporary, files.create(temporary) as file:
        safetensors.write(file, weights, metadata)
        files.flush_to_disk(file)
    return len(weights)


def saved_weights(path: Path, *, averaged: bool = True) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Manifest and weights of a checkpoint folder, or averages as in export(). Raises DamagedError, and UserError as export()."""
    manifest = files.verify(path, files.step_of(path))
    if files.is_sharded(manifest):
        return manifest, dict(read_weights(Checkpoint(path, manifest), averaged=averaged))
    with (path / "state.pt").open("rb") as file:
        state = load_state(file, path.name)
    if not averaged or not has_averages(manifest):
        return manifest, state["model"]
    moments = named(state, manifest["sizes"], keep_scale=False, keep_ema=True)["moments"]
    averages = {name: values[EMA] for name, values in moments.items() if EMA in values}
    aliases = {alias: averages[name] for alias, name in manifest["aliases"].items() if name in averages}
    return manifest, {**state["model"], **averages, **aliases}


def has_averages(manifest: Mapping[str, Any]) -> bool:
    """Return True if the checkpoint has averages of the weights."""
    return bool(manifest["config"]["optim"].get("ema"))


def _kinds() -> str:
    return ", ".join(str(dtype).rpartition(".")[2] for dtype in DTYPES)
