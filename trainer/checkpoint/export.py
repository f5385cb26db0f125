"""
The weights of a checkpoint as one safetensors file, written without the package, which may be missing.

    8 bytes: size of the header · header, JSON: name -> dtype, shape, data_offsets · the tensors' bytes, little-endian
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
from pathlib import Path
from typing import Any, BinaryIO, Dict, Mapping

import torch

from trainer.checkpoint import files
from trainer.checkpoint.state_file import load_state
from trainer.errors import UserError

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
PART_BYTES = 64 << 20


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
    manifest = files.verify(path, files.step_of(path))
    with (path / "state.pt").open("rb") as file:
        weights = load_state(file, path.name)["model"]
    unsupported = {name: getattr(tensor, "dtype", type(tensor).__name__) for name, tensor in weights.items()}
    unsupported = {name: kind for name, kind in unsupported.items() if kind not in DTYPES}
    if unsupported:
        listed = ", ".join(f"{name} ({kind})" for name, kind in unsupported.items())
        raise UserError(f"{path}: export writes tensors of {_kinds()}, not {listed}")
    metadata = {"format": "pt", "step": str(manifest["step"]), "config": json.dumps(manifest["config"])}
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        with files.create(temporary) as file:
            write_safetensors(file, weights, metadata)
            files.flush_to_disk(file)
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    return len(weights)


def _kinds() -> str:
    return ", ".join(str(dtype).rpartition(".")[2] for dtype in DTYPES)


def write_safetensors(file: BinaryIO, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    header: Dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        whole = tensor.contiguous()
        size = whole.numel() * whole.element_size()
        for start in range(0, size, PART_BYTES):  # by address: numpy may be missing
            file.write(ctypes.string_at(whole.data_ptr() + start, min(PART_BYTES, size - start)))
