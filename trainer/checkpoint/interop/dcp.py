"""
Weights in folders of torch.distributed.checkpoint (DCP): `.metadata`, a pickle, and parts of tensors in `*.distcp`.

No class of a pickle is ever made or called but those here, which do nothing.
"""

from __future__ import annotations

import functools
import io
import math
import os
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import torch

from trainer.errors import UserError
from trainer.safetensors import DTYPES

METADATA_FILE = ".metadata"
METADATA_BYTES = 1 << 30
ZIP = b"PK\x03\x04"  # older formats of torch.save are not read
MODEL_PREFIX = "model."  # of {"model": model.state_dict()}
OPTIMIZER_PREFIXES = ("optimizer.", "optim.")

Pickled = Any  # an object that a pickle holds


@dataclass(frozen=True)
class Weight:
    """
    One tensor, not read yet.

    file: that has it, or its index.
    kind: as safetensors name the type; other types by their names in torch.
    read: raises UserError; the message begins with the file.
    """

    file: str
    kind: str
    shape: Tuple[int, ...]
    size: int
    read: Callable[[], torch.Tensor]


class _Record:
    """Stands for an object of any allowed class; has its state only."""

    def __init__(self, *arguments: Any) -> None:
        self.state: Pickled = arguments

    def __setstate__(self, state: Pickled) -> None:
        self.state = state

    def get(self, name: str) -> Pickled:
        return self.state.get(name) if isinstance(self.state, dict) else None


class _Tensor(_Record):
    """TensorStorageMetadata."""


class _Bytes(_Record):
    """BytesStorageMetadata."""


class _Index(_Record):
    """MetadataIndex."""


_METADATA, _PATHS = "torch.distributed.checkpoint.metadata", ("pathlib", "pathlib._local")
ALLOWED: Mapping[Tuple[str, str], Any] = {
    (_METADATA, "Metadata"): _Record,
    (_METADATA, "TensorStorageMetadata"): _Tensor,
    (_METADATA, "BytesStorageMetadata"): _Bytes,
    (_METADATA, "ChunkStorageMetadata"): _Record,
    (_METADATA, "MetadataIndex"): _Index,
    (_METADATA, "TensorProperties"): _Record,
    (_METADATA, "StorageMeta"): _Record,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _Record,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _Record,
    ("torch.serialization", "_get_layout"): _Record,
    ("torch", "Size"): tuple,
    ("builtins", "getattr"): _Record,  # of the memory format, in some versions of Python
    ("collections", "OrderedDict"): OrderedDict,
    **{(module, f"{kind}Path"): _Record for module in _PATHS for kind in ("Posix", "PurePosix", "Windows", "PureWindows")},
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    """Makes records, plain values and torch's types."""

    def find_class(self, module: str, name: str) -> Pickled:
        dtype = getattr(torch, name, None) if module == "torch" and name.isidentifier() else None
        if isinstance(dtype, torch.dtype):
            return dtype
        if (module, name) not in ALLOWED:
            raise UserError(
                f"{METADATA_FILE}: names {module}.{name}, which is not part of torch's format: it is not read"
            )
        return ALLOWED[module, name]


class _Part(NamedTuple):
    """A part of a tensor: the bytes in a file, and where it belongs."""

    file: str
    offset: int
    length: int
    starts: Tuple[int, ...]
    shape: Tuple[int, ...]


class _Saved(NamedTuple):
    """A tensor, and its parts in the files of a folder."""

    folder: Path
    name: str
    shape: Tuple[int, ...]
    dtype: torch.dtype
    parts: Sequence[_Part]


def is_dcp(folder: Path) -> bool:
    return (folder / METADATA_FILE).exists()


def weights_in(folder: Path, names: Mapping[str, Any]) -> Dict[str, Weight]:
    """
    Return the tensors in the folder by the names of the model, not read yet.

    Args:
        folder: written by torch.distributed.checkpoint.
        names: of the model. A state saved under "model" is recognised by them; the optimizer's tensors are left out.

    Raises:
        UserError: its metadata cannot be read, or are not those of such a folder.
        OSError: it cannot be read.
    """
    found = _read_metadata(folder / METADATA_FILE)
    try:
        weights = _weights_of(folder, found)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise UserError(f"{METADATA_FILE}: is not the metadata of torch.distributed.checkpoint: {exc}") from exc
    inner = {name[len(MODEL_PREFIX) :]: weight for name, weight in weights.items() if name.startswith(MODEL_PREFIX)}
    if sum(name in names for name in inner) > sum(name in names for name in weights):
        return inner
    return {name: weight for name, weight in weights.items() if not name.startswith(OPTIMIZER_PREFIXES)}


def _read_metadata(path: Path) -> _Record:
    if path.stat().st_size > METADATA_BYTES:
        raise UserError(f"{METADATA_FILE}: larger than {METADATA_BYTES} bytes")
    try:
        found = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except (UserError, OSError):
        raise
    except Exception as exc:  # a damaged pickle raises any
        raise UserError(f"{METADATA_FILE}: cannot be read, or is cut short: {exc}") from exc
    if not isinstance(found, _Record):
        raise UserError(f"{METADATA_FILE}: is not the metadata of torch.distributed.checkpoint")
    return found


def _weights_of(folder: Path, metadata: _Record) -> Dict[str, Weight]:
    stored = {(index.get("fqn"), index.get("offset")): info for index, info in metadata.get("storage_data").items()}
    weights = {}
    for name, tensor in metadata.get("state_dict_metadata").items():
        if not isinstance(tensor, _Tensor):
            continue
        dtype, shape = tensor.get("properties").state[0], _sizes(tensor.get("size"))
        parts: List[_Part] = []
        for chunk in tensor.get("chunks"):
            starts = _sizes(chunk.get("offsets"))
            info = stored.get((name, starts))
            if info is None:
                raise UserError(f"{METADATA_FILE}: {name} has a part at {list(starts)} that is in no file")
            if info.get("transform_descriptors"):
                raise UserError(
                    f"{METADATA_FILE}: {name} is stored in another form: {info.get('transform_descriptors')}"
                )
            file, (offset, length) = info.get("relative_path"), _sizes((info.get("offset"), info.get("length")))
            if os.path.basename(file) != file or file in ("", ".", ".."):
                raise UserError(f"{METADATA_FILE}: {name} is in {file!r}, which is no file of this folder")
            parts.append(_Part(file, offset, length, starts, _sizes(chunk.get("sizes"))))
        read = functools.partial(_read, _Saved(folder, name, shape, dtype, parts))
        size = math.prod(shape) * torch.empty((), dtype=dtype).element_size() if dtype in DTYPES else 0
        weights[str(name)] = Weight(METADATA_FILE, DTYPES.get(dtype, str(dtype)), shape, size, read)
    return weights


def _sizes(values: Pickled) -> Tuple[int, ...]:
    if not isinstance(values, tuple) or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"{values!r} are no sizes")
    return values


def _read(saved: _Saved) -> torch.Tensor:
    """Put the parts of a tensor together; each element has to be in one of them."""
    name, shape = saved.name, saved.shape
    whole, is_there = torch.empty(shape, dtype=saved.dtype), torch.zeros(shape, dtype=torch.bool)
    for part in saved.parts:
        stops = tuple(start + size for start, size in zip(part.starts, part.shape))
        if not len(part.starts) == len(part.shape) == len(shape) or any(map(int.__gt__, stops, shape)):
            raise UserError(f"{part.file}: a part of {name} is not within its shape {list(shape)}")
        block = tuple(map(slice, part.starts, stops))
        whole[block] = _read_part(saved, part)
        is_there[block] = True
    count = sum(math.prod(part.shape) for part in saved.parts)
    if count != math.prod(shape) or not bool(is_there.all()):
        raise UserError(f"{METADATA_FILE}: {name}: not every one of {math.prod(shape)} elements is in one part")
    return whole


def _read_part(saved: _Saved, part: _Part) -> torch.Tensor:
    name, end = saved.name, part.offset + part.length
    try:
        with (saved.folder / part.file).open("rb") as file:
            if os.fstat(file.fileno()).st_size < end:
                raise UserError(f"{part.file}: cut short: {name} ends at byte {end}")
            file.seek(part.offset)
            data = file.read(part.length)
    except OSError as exc:
        raise UserError(f"{part.file}: cannot be read: {exc.strerror}; {name} is in it") from exc
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True) if data[:4] == ZIP else None
    except Exception as exc:  # damaged data raise any
        raise UserError(f"{part.file}: {name} cannot be read: its bytes are damaged") from exc
    if not isinstance(found, torch.Tensor) or (found.dtype, tuple(found.shape)) != (saved.dtype, part.shape):
        expected = f"{saved.dtype} of shape {list(part.shape)}"
        raise UserError(f"{part.file}: bytes {part.offset} to {end} are not {name} as {METADATA_FILE} says: {expected}")
    return found
