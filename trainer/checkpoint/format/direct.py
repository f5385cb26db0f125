"""Large files written from memory and compared with it, past the page cache if the file system can: it takes a tenth of the CPU time."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
from pathlib import Path
from typing import Any, Dict

PART_BYTES = 8 << 20
BLOCK_BYTES = 4096  # transfers past the cache have whole blocks
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def write_verified(path: Path, data: memoryview) -> Dict[str, Any]:
    """
    Write a new private file, flush it to disk, and compare it with the memory.

    Args:
        path: no file is there.
        data: writable memory, which begins with a page, or the cache is used.

    Returns:
        Its size and hash.

    Raises:
        OSError: no space, no permission, or the data read back differ from the data written.
    """
    digest = hashlib.sha256()
    file = _DirectFile(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for start in range(0, len(data), PART_BYTES):
            part = data[start : start + PART_BYTES]
            digest.update(part)
            file.write(part)
        os.fsync(file.descriptor)
    finally:
        os.close(file.descriptor)
    compare(path, data)
    return {"bytes": len(data), "sha256": digest.hexdigest()}


def compare(path: Path, data: memoryview) -> None:
    """Raises OSError if the content of a file is another one than `data`."""
    buffer = mmap.mmap(-1, PART_BYTES)
    file = _DirectFile(path, os.O_RDONLY)
    try:
        position, size = 0, file.read(buffer)
        while size:
            rest = data[position : position + size]
            if len(rest) != size or _memcmp(_address(rest), _address(buffer), size):
                raise OSError(f"{path} reads back differently")
            position += size
            size = file.read(buffer)
    finally:
        os.close(file.descriptor)
    if position != len(data):
        raise OSError(f"{path} reads back differently: {position} of {len(data)} bytes")


def _address(data: bytearray | memoryview | mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


class _DirectFile:
    """A file that is read or written past the cache until the file system refuses to."""

    def __init__(self, path: Path, flags: int) -> None:
        try:
            self.descriptor = os.open(str(path), flags | os.O_DIRECT, 0o600)
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
            self.descriptor = os.open(str(path), flags & ~os.O_EXCL, 0o600)  # some create the file, and then refuse

    def write(self, part: memoryview) -> None:
        while part:
            whole = len(part) - len(part) % BLOCK_BYTES
            if not whole:
                self._use_cache()
            try:
                part = part[os.write(self.descriptor, part[:whole] if whole else part) :]
            except OSError as exc:
                self._use_cache_after(exc)

    def read(self, buffer: mmap.mmap) -> int:
        """Fill the beginning of the buffer; returns the number of bytes, 0 at the end."""
        while True:
            try:
                return os.readv(self.descriptor, [buffer])
            except OSError as exc:
                self._use_cache_after(exc)

    def _use_cache_after(self, error: OSError) -> None:
        """Use the cache if the transfer was refused because of the place or size of the data; else raise the error."""
        if error.errno != errno.EINVAL or not fcntl.fcntl(self.descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise error
        self._use_cache()

    def _use_cache(self) -> None:
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, fcntl.fcntl(self.descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
