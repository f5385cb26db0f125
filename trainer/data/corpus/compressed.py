"""Files of text as streams of bytes, also those that are compressed by gzip or zstd. No torch here."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import importlib.util
import io
import sys
import zlib
from pathlib import Path
from typing import BinaryIO, Iterator, cast

from trainer.errors import UserError
from trainer.values import Foreign

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""The formats by suffix, as formats.BINARY names them."""
MOST_WINDOW_BYTES = 1 << 31  # of `zstd --long=31`
READ_BYTES = 1 << 20


def is_compressed(path: Path) -> bool:
    return path.suffix in COMPRESSED


def text_suffix(path: Path) -> str:
    """The suffix of the text: `.jsonl` of both NAME.jsonl and NAME.jsonl.gz."""
    return Path(path.stem).suffix if is_compressed(path) else path.suffix


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """
    Open a file, unpacked; only what is not compressed can seek.

    Raises:
        UserError: in the block, too; the file is no such archive, is damaged or cut short, or zstandard is missing.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if not is_compressed(path):
            yield file
            return
        try:
            if path.suffix == ".zst":
                yield io.BufferedReader(_Zstd(path, file), READ_BYTES)
            else:
                yield cast("BinaryIO", gzip.GzipFile(fileobj=file))
        except EOFError as exc:
            raise UserError(f"{path}: is cut short") from exc
        except (gzip.BadGzipFile, zlib.error, _DamagedError) as exc:
            raise UserError(f"{path}: cannot be unpacked: {exc}") from exc


class _DamagedError(Exception):
    """Bytes that zstandard refuses."""


class _Zstd(io.RawIOBase):
    """The content of all frames of a file; the reader of zstandard takes one that is cut short for a whole one."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Raises UserError: zstandard is missing."""
        if importlib.util.find_spec("zstandard") is None:
            raise UserError(f"{path}: zstd needs the package zstandard, which is not installed for {sys.executable}")
        self._module: Foreign = importlib.import_module("zstandard")
        self._chunks = self._unpacked(file)
        self._chunk = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._chunk = chunk
        count = min(len(buffer), len(self._chunk))
        buffer[:count], self._chunk = self._chunk[:count], self._chunk[count:]
        return count

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        decompressor = self._module.ZstdDecompressor(max_window_size=MOST_WINDOW_BYTES)
        frame = None
        packed = file.read(READ_BYTES)
        while packed:
            frame = frame or decompressor.decompressobj()
            try:
                yield frame.decompress(packed)
            except self._module.ZstdError as exc:
                raise _DamagedError(exc) from exc
            rest = b""
            if frame.eof:
                rest, frame = frame.unused_data, None
            packed = rest or file.read(READ_BYTES)
        if frame:
            raise EOFError
