"""Files of tokens as one sequence, read in pieces on request."""

from __future__ import annotations

import ast
import bisect
import hashlib
import os
import sysconfig
from collections import OrderedDict
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Sequence, Tuple

import torch

from trainer.data import formats
from trainer.data.paths import matching_files
from trainer.errors import UserError

OPEN_AT_ONCE = 64
DIGEST_PARTS = 256  # parts of the sequence that the digest covers
DIGEST_PART_TOKENS = 1024
MAX_HEADER_BYTES = 1 << 16
# torch before 2.3 has no unsigned type but uint8: larger ones are read as signed, then masked.
DTYPES = {"u1": torch.uint8, "u2": torch.int16, "u4": torch.int32, "i4": torch.int32, "i8": torch.int64}
KINDS = {"bytes": "u1", "uint16": "u2", "uint32": "u4"}
NAMES = {"u1": "bytes", "u2": "uint16", "u4": "uint32", "i4": "int32", "i8": "int64"}


@dataclass(frozen=True)
class TokenFile:
    """Tokens of one kind (a key of DTYPES), little-endian, from byte `start` on."""

    path: Path
    kind: str
    start: int
    count: int

    @property
    def width(self) -> int:
        """Bytes per token."""
        return int(self.kind[1:])


class OpenFiles:
    """The most recently read files, kept open; a copy in another process opens its own."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, int] = OrderedDict()

    def __del__(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    def __reduce__(self) -> Tuple[Any, ...]:
        return OpenFiles, ()

    def read(self, path: Path, start: int, size: int) -> bytes:
        """Raises UserError: it cannot be read, or is shorter than it was."""
        try:
            descriptor = (
                self._files.pop(path) if path in self._files else os.open(str(path), os.O_RDONLY | os.O_CLOEXEC)
            )
            self._files[path] = descriptor
            if len(self._files) > OPEN_AT_ONCE:
                os.close(self._files.popitem(last=False)[1])
            data, there = os.pread(descriptor, size, start), os.fstat(descriptor).st_size
        except OSError as exc:
            raise UserError(f"data: {path}: {exc.strerror}") from exc
        if len(data) < size:
            raise UserError(f"data: {path}: {there} bytes, {start + size} expected: was it cut short during training?")
        return data


class Tokens:
    """The tokens of all files, one after the other."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        self.files = [file for file in files if file.count]
        self._ends = list(accumulate(file.count for file in self.files))
        self._open = OpenFiles()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, count: int) -> torch.Tensor:
        """int64; start + count must not be above the length."""
        parts = [_decode(data, kind) for data, kind in self._pieces(start, count)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def position_of(self, token: int) -> str:
        """File and position of a token, for messages."""
        index = bisect.bisect_right(self._ends, token)
        file = self.files[index]
        return f"{file.path}, token {token - (self._ends[index] - file.count)}"

    @property
    def has_text(self) -> bool:
        """Bytes, so no number is above 255."""
        return all(file.kind == "u1" for file in self.files)

    def digest(self) -> str:
        """Hash of the sizes and of samples spread over all tokens; equal data have equal digests. Reads about a MiB at most."""
        total = hashlib.sha256(",".join(f"{file.kind}{file.count}" for file in self.files).encode())
        last = max(0, len(self) - DIGEST_PART_TOKENS)
        for start in sorted({last * part // DIGEST_PARTS for part in range(DIGEST_PARTS + 1)}):
            for data, _ in self._pieces(start, min(DIGEST_PART_TOKENS, len(self))):
                total.update(data)
        return total.hexdigest()

    def _pieces(self, start: int, count: int) -> Iterator[Tuple[bytes, str]]:
        """The bytes of `count` tokens and their kind, one piece per file."""
        index = bisect.bisect_right(self._ends, start)
        while count > 0:
            file = self.files[index]
            inside = start - (self._ends[index] - file.count)
            taken = min(count, file.count - inside)
            yield self._open.read(file.path, file.start + inside * file.width, taken * file.width), file.kind
            start, count, index = start + taken, count - taken, index + 1


def find_tokens(paths: Sequence[str], form: str, key: str = "data.paths") -> Tokens:
    """
    The tokens of files, folders and globs, in order; of the standard library's top-level sources without paths.

    Args:
        paths: as configured.
        form: bytes, uint16 or uint32; or auto, by the name: `.npy` and `.bin` by their headers (formats.py), others text.
        key: the setting with these paths, for messages.

    Raises:
        UserError: nothing matches, or a file cannot be read or does not match its header.
    """
    found = [path for name in paths for path in matching_files(name, key)] if paths else _standard_library()
    indexes = {path for path in found if path.suffix == ".idx" and path.with_suffix(".bin") in found}
    files = [_token_file(path, form, key) for path in found if path not in indexes]
    texts, arrays = ([file for file in files if (file.kind == "u1") == is_text] for is_text in (True, False))
    if texts and arrays:
        raise UserError(
            f"{key}: {texts[0].path} is read as bytes and {arrays[0].path} as tokens, which do not go together: "
            "name files of one kind, or set data.format"
        )
    return Tokens(files)


def _decode(data: bytes, kind: str) -> torch.Tensor:
    signed = torch.frombuffer(bytearray(data), dtype=DTYPES[kind]).long()
    return signed & ((1 << 8 * int(kind[1:])) - 1) if kind in ("u2", "u4") else signed


def _token_file(path: Path, form: str, key: str) -> TokenFile:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            kind, start, declared_bytes = _layout(path, file, size, form)
        if size - start != declared_bytes:
            raise ValueError(
                f"{size - start} bytes of tokens, its header says {declared_bytes}: cut short, or still being written?"
            )
    except OSError as exc:
        raise UserError(f"{key}: {path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise UserError(f"{key}: {path}: {exc}") from exc
    width = int(kind[1:])
    if (size - start) % width:
        raise UserError(
            f"{key}: {path}: {size - start} bytes of tokens, no multiple of the {width} of one: see data.format"
        )
    return TokenFile(path, kind, start, (size - start) // width)


def _layout(path: Path, file: BinaryIO, size: int, form: str) -> Tuple[str, int, int]:
    """Kind, offset and size in bytes of the tokens of a file; a ValueError names the reason why it has none."""
    if form == "auto" and path.suffix == ".npy":
        return _npy_header(file)
    if form != "bytes" and (path.suffix == ".bin" or form != "auto"):
        declared = formats.megatron_layout(path) or formats.llmc_layout(file.read(formats.LLMC_BYTES))
        if declared and form != "auto" and int(KINDS[form][1:]) != int(declared[0][1:]):
            raise ValueError(f"its header says {NAMES[declared[0]]}, data.format={form}: leave data.format out")
        return declared or (KINDS["uint16" if form == "auto" else form], 0, size)
    if form == "auto":
        formats.check_text(path, file.read(formats.TEXT_BYTES))
    return "u1", 0, size


def _npy_header(file: BinaryIO) -> Tuple[str, int, int]:
    """Kind, offset and size of the numbers in bytes. Parsed here because a node may have no numpy; a ValueError names the fault."""
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or len(magic) < 8:  # noqa: PLR2004 -- as read above
        raise ValueError("no .npy file")
    width = 2 if magic[6] == 1 else 4
    size = int.from_bytes(file.read(width), "little")
    if size > MAX_HEADER_BYTES:
        raise ValueError("no .npy file that is known here: its header is too long")
    text = file.read(size)
    try:
        header: Dict[str, Any] = ast.literal_eval(text.decode("latin-1").strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:  # as literal_eval says
        raise ValueError("no .npy file: its header cannot be read") from exc
    if not isinstance(header, dict):
        raise ValueError("no .npy file: its header is no mapping")  # of the file, not of a type
    shape, kind = header.get("shape"), str(header.get("descr"))
    if not isinstance(shape, tuple) or len(shape) != 1 or not isinstance(shape[0], int):
        raise ValueError(f"an array of shape {shape}: tokens are one row of numbers")
    if kind[:1] == ">" or kind[1:] not in DTYPES:
        raise ValueError(f"numbers of kind {kind!r}: uint8, uint16, uint32, int32 and int64 can be read, little-endian")
    return kind[1:], 8 + width + size, shape[0] * int(kind[2:])


def _standard_library() -> List[Path]:
    """Text that every node has. Build settings are left out: they hold paths of the machine that built Python."""
    return [
        path
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        if not path.name.startswith("_sysconfigdata") and os.access(str(path), os.R_OK)
    ]
