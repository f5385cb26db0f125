"""
Files of tensors in the safetensors format, read and written without the package, which may be missing.

    8 bytes: size of the header · header, JSON: name -> dtype, shape, data_offsets · the tensors' bytes, little-endian
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Dict, Mapping, Tuple

import torch

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
KINDS = {kind: dtype for dtype, kind in DTYPES.items()}
METADATA = "__metadata__"
SIZE_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # as the package has it
PART_BYTES = 256 << 10  # as READ_BYTES of checkpoints


class FormatError(ValueError):
    """The file does not have this format, or is cut short; the message lacks its name."""


@dataclass(frozen=True)
class Entry:
    """One tensor: its type as the file names it, and where its bytes are, counted from the start of the file."""

    kind: str
    shape: Tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """Tensors by name, in the order of their bytes, and the metadata, which are texts."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]


def read_header(path: Path) -> Header:
    """
    Read and check the header: the tensors fill the rest of the file without holes, and their sizes fit.

    Raises:
        FormatError: see there.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        size = int.from_bytes(file.read(SIZE_BYTES), "little")
        start = SIZE_BYTES + size
        if file_bytes < SIZE_BYTES or size > MAX_HEADER_BYTES or start > file_bytes:
            raise FormatError(f"not a safetensors file, or cut short: {file_bytes} bytes, its header says {size}")
        text = file.read(size)
    try:
        header = json.loads(text.decode())
        metadata = header.pop(METADATA, {})
        entries = {name: _entry(value, start) for name, value in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise FormatError("not a safetensors file: its header cannot be read") from exc
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)))
    end = start
    for name, entry in entries.items():
        dtype = KINDS.get(entry.kind)  # the size of other types is unknown
        length = math.prod(entry.shape) * torch.empty((), dtype=dtype).element_size() if dtype else entry.end - end
        if entry.start != end or entry.end < end or entry.end - end != length:
            raise FormatError(
                f"{name}: {entry.kind} of shape {list(entry.shape)} at bytes {entry.start} to {entry.end}, "
                "which is another size, or does not follow the tensor before it"
            )
        end = entry.end
    if end != file_bytes:
        raise FormatError(f"{file_bytes} bytes, its header says {end}: cut short, or still being written?")
    return Header(entries, metadata if isinstance(metadata, dict) else {})


def _entry(value: Mapping[str, Any], start: int) -> Entry:
    begin, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(value)
    return Entry(str(value["dtype"]), shape, start + begin, start + end)


class SafetensorsFile:
    """An open file. Its tensors are mapped: bytes are read when they are used, and kept while a tensor refers to them."""

    def __init__(self, path: Path) -> None:
        """Raises FormatError and OSError, as read_header()."""
        self.header = read_header(path)
        with path.open("rb") as file:
            # A private copy: torch warns of memory that cannot be written.
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor by name; a slice of it reads the rows in it only. Raises FormatError: its type is not in DTYPES."""
        entry = self.header.entries[name]
        dtype = KINDS.get(entry.kind)
        if dtype is None:
            raise FormatError(f"{name} is of type {entry.kind}; {', '.join(KINDS)} can be read")
        if entry.start == entry.end:
            return torch.empty(entry.shape, dtype=dtype)
        source, start = self._mapped, entry.start
        if start % torch.empty((), dtype=dtype).element_size():  # some devices and processors need alignment
            source, start = bytearray(self._mapped[entry.start : entry.end]), 0  # type: ignore[assignment]
        flat = torch.frombuffer(source, dtype=dtype, count=math.prod(entry.shape), offset=start)
        return flat.view(entry.shape)


def header_bytes(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before those of the tensors, which follow in this order."""
    header: Dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % SIZE_BYTES)
    return len(text).to_bytes(SIZE_BYTES, "little") + text


def write(file: BinaryIO, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors, which are on the CPU and of types in DTYPES."""
    file.write(header_bytes(tensors, metadata))
    for tensor in tensors.values():
        whole = tensor.detach().contiguous()
        size = whole.numel() * whole.element_size()
        parts = ((whole.data_ptr() + start, min(PART_BYTES, size - start)) for start in range(0, size, PART_BYTES))
        file.writelines(ctypes.string_at(*part) for part in parts)  # by address: numpy may be missing
