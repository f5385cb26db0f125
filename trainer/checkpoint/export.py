"""The weights of a checkpoint as one safetensors file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any, Dict, Tuple

from trainer import safetensors
from trainer.checkpoint import files
from trainer.checkpoint.files import Checkpoint
from trainer.checkpoint.sharded import read_weights
from trainer.checkpoint.state_file import load_state
from trainer.errors import UserError
from trainer.safetensors import DTYPES


def export(path: Path, target: Path) -> int:
    """
    Write the weights of the checkpoint folder `path`.

    Returns:
        The number of tensors.

    Raises:
        DamagedError: it does not verify.
        UserError: it verifies, but is not a training state, or holds tensors of unsupported types.
        OSError: `target` exists, or cannot be written.
    """
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    manifest, weights = saved_weights(path)
    unsupported = {name: getattr(tensor, "dtype", type(tensor).__name__) for name, tensor in weights.items()}
    unsupported = {name: kind for name, kind in unsupported.items() if kind not in DTYPES}
    if unsupported:
        listed = ", ".join(f"{name} ({kind})" for name, kind in unsupported.items())
        raise UserError(f"{path}: export writes tensors of {_kinds()}, not {listed}")
    metadata = {"format": "pt", "step": str(manifest["step"]), "config": json.dumps(manifest["config"])}
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        with files.create(temporary) as file:
            safetensors.write(file, weights, metadata)
            files.flush_to_disk(file)
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    return len(weights)


def saved_weights(path: Path) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Manifest and weights of a checkpoint folder. Raises DamagedError, and UserError as export()."""
    manifest = files.verify(path, files.step_of(path))
    if files.is_sharded(manifest):
        return manifest, dict(read_weights(Checkpoint(path, manifest)))
    with (path / "state.pt").open("rb") as file:
        return manifest, load_state(file, path.name)["model"]


def _kinds() -> str:
    return ", ".join(str(dtype).rpartition(".")[2] for dtype in DTYPES)
