"""The division of files into parts of about equal size, of which each becomes one token file. No torch here."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Sequence

from trainer.data.corpus.compressed import COMPRESSED, is_compressed, open_text, text_suffix
from trainer.data.formats import RECORD_LISTS, RECORDS, TEXT_BYTES, binary_kind
from trainer.errors import UserError
from trainer.io import LFS_REMEDY, is_lfs_pointer
from trainer.values import Foreign

LEAST_BYTES, MOST_BYTES = 1 << 20, 64 << 20  # of a part
PARTS = 64
"""Texts between the two are divided into as many, whatever the number of processes: another one may continue."""
PARQUET = ".parquet"
EXPANSION = 4
"""Bytes of text of a compressed byte, about; the exact number is known when the file has been read."""
TEXT, LINES, LIST, ROWS = "text", "lines", "list", "rows"


@dataclass(frozen=True)
class Piece:
    """
    The bytes `start` to `stop` of a file, or these row groups of a Parquet file.

    A line belongs to the piece in which it starts. A compressed file and a list are one piece each, as nothing in them can be sought.
    """

    path: Path
    form: str
    """TEXT, LINES of records, LIST of records, or ROWS."""
    start: int
    stop: int
    size: int
    """Bytes of text, for the division and the progress."""


def parts_of(paths: Sequence[Path]) -> List[List[Piece]]:
    """
    Divide the files, in order, into parts of equal size, as far as rows and lines allow.
    Raises UserError: a file cannot be read, or is of a kind that has no text.
    """
    try:
        part_bytes = min(MOST_BYTES, max(LEAST_BYTES, sum(path.stat().st_size for path in paths) // PARTS))
        pieces = [piece for path in paths for piece in _pieces(path, part_bytes)]
    except OSError as exc:
        raise UserError(f"{exc.filename}: cannot be read: {exc.strerror}") from exc
    parts: List[List[Piece]] = []
    filled = 0
    for piece in pieces:
        if not parts or filled + piece.size > part_bytes:
            parts.append([])
            filled = 0
        parts[-1].append(piece)
        filled += piece.size
    return parts


def _pieces(path: Path, part_bytes: int) -> Iterator[Piece]:
    if path.suffix == PARQUET:
        yield from _row_groups(path)
        return
    if is_lfs_pointer(path):
        raise UserError(f"{path}: {LFS_REMEDY}")
    with open_text(path) as file:
        head = file.read(TEXT_BYTES)
    _check_text(path, head)
    form, size = _form(path, head), path.stat().st_size
    if is_compressed(path):
        yield Piece(path, form, 0, sys.maxsize, EXPANSION * size)
    elif form == LIST:
        yield Piece(path, form, 0, size, size)
    else:
        for start in range(0, size, part_bytes):
            stop = min(size, start + part_bytes)
            yield Piece(path, form, start, stop, stop - start)


def _check_text(path: Path, head: bytes) -> None:
    binary = binary_kind(head)
    if not binary:
        return
    suffix = next((suffix for suffix, name in COMPRESSED.items() if name == binary and not is_compressed(path)), "")
    kinds = ", ".join(f"*{suffix}" for suffix in (*RECORDS, *RECORD_LISTS, PARQUET, *COMPRESSED))
    remedy = f"name it {path.name}{suffix}" if suffix else f"text, {kinds} can be read"
    raise UserError(f"{path}: no text but {binary}: {remedy}")


def _form(path: Path, head: bytes) -> str:
    suffix = text_suffix(path)
    if suffix in RECORDS:
        return LINES
    is_list = suffix in RECORD_LISTS and head.decode("utf-8-sig", "replace").lstrip().startswith("[")
    return LIST if is_list else TEXT


def _row_groups(path: Path) -> Iterator[Piece]:
    metadata = parquet_file(path).metadata
    for number in range(metadata.num_row_groups):
        yield Piece(path, ROWS, number, number + 1, metadata.row_group(number).total_byte_size)


def parquet_file(path: Path) -> Foreign:
    """Open a file by pyarrow. Raises UserError: the package is missing, or the file is no Parquet."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"{path}: Parquet needs the package pyarrow, which is not installed for {sys.executable}")
    try:
        return importlib.import_module("pyarrow.parquet").ParquetFile(str(path))
    except (ValueError, OSError) as exc:  # ArrowInvalid is a ValueError
        reason = LFS_REMEDY if is_lfs_pointer(path) else f"cannot be read as Parquet: {exc}"
        raise UserError(f"{path}: {reason}") from exc
