"""Recognise token files of llm.c and Megatron by their headers, and files that are no text. No torch here."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Tuple

LLMC_BYTES = 1024
LLMC_KINDS = {(20240520, 1): "u2", (20240801, 7): "u4"}  # magic number and version; of GPT-2 and Llama 3
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_HEADER = "<QBQQ"  # version, kind, number of sequences, number of documents
MEGATRON_KINDS = {1: "u1", 4: "i4", 5: "i8", 8: "u2"}
TEXT_BYTES = 8192
# The first bytes of file formats that users often give by mistake, and that may have no zero byte near their start.
BINARY = {
    b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"PAR1": "Parquet",
    b"ARROW1": "Arrow", b"\x89HDF": "HDF5", b"\x93NUMPY": "NumPy", b"%PDF": "PDF",
}  # fmt: skip
RECORDS = (".jsonl", ".ndjson")
RECORD_LISTS = (".json",)
REMEDY = "name the text by a glob, such as data.paths=FOLDER/**/*.txt, or set data.format=bytes to train on its bytes as they are"


def llmc_layout(head: bytes) -> Tuple[str, int, int] | None:
    """Kind, offset and size in bytes of the tokens, by the first LLMC_BYTES of a file; None without a header of llm.c."""
    if len(head) < LLMC_BYTES:
        return None
    magic, version, count = struct.unpack_from("<iii", head)
    kind = LLMC_KINDS.get((magic, version))
    return (kind, LLMC_BYTES, count * int(kind[1:])) if kind else None


def megatron_layout(path: Path) -> Tuple[str, int, int] | None:
    """The same for NAME.bin by Megatron's NAME.idx; None without one. Raises OSError, and ValueError for a kind that is no token."""
    index = path.with_suffix(".idx")
    if not index.is_file():
        return None
    size = struct.calcsize(MEGATRON_HEADER)
    with index.open("rb") as file:
        magic = file.read(len(MEGATRON_MAGIC))
        if magic != MEGATRON_MAGIC and not MEGATRON_MAGIC.startswith(magic):
            return None
        head = file.read(size)
        if len(head) < size:
            raise ValueError(f"{index} is cut short")
        _, code, sequences, _ = struct.unpack(MEGATRON_HEADER, head)
        # The lengths of all sequences follow, then their offsets in bytes: the last of both give the whole size.
        file.seek(len(MEGATRON_MAGIC) + size + 4 * max(0, sequences - 1))
        length = file.read(4)
        file.seek(8 * max(0, sequences - 1), 1)
        offset = file.read(8)
    if sequences and (len(length), len(offset)) != (4, 8):
        raise ValueError(f"{index} is cut short")
    kind = MEGATRON_KINDS.get(code)
    if kind is None:
        raise ValueError(
            f"{index} says numbers of kind {code}: uint8, int32, int64 and uint16 (1, 4, 5, 8) can be read"
        )
    return kind, 0, struct.unpack("<q", offset)[0] + int(kind[1:]) * struct.unpack("<i", length)[0] if sequences else 0


def check_text(path: Path, head: bytes) -> None:
    """Raises ValueError: a file of this name and these first bytes is no text."""
    if path.suffix in RECORDS:
        raise ValueError(
            f"records ({path.suffix}), whose braces and keys would be trained on: chats are for task=hf:PATH and "
            f"trainer.tasks.llama:Llama; extract their text, or {REMEDY}"
        )
    binary = binary_kind(head)
    if binary:
        raise ValueError(f"no text but {binary}: {REMEDY}")


def binary_kind(head: bytes) -> str:
    """The format of a file that is no text, by its first bytes, or ""."""
    known = next((name for magic, name in BINARY.items() if head.startswith(magic)), "")
    return known or ("binary data" if b"\0" in head else "")
