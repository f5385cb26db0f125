"""A file system of one file, `data`, whose reads are answered, held for ever, or refused as a stale handle. FUSE, as root."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH, _INIT, _INTERRUPT, _BATCH_FORGET = (
    1, 2, 3, 14, 15, 18, 25, 26, 36, 42,
)  # fmt: skip
_UNANSWERED = (_FORGET, _INTERRUPT, _BATCH_FORGET)
_FILE_NODE = 2
_DIRECT_IO = 1  # every read reaches this server, not the page cache
_MNT_DETACH = 2
_REQUEST_BYTES = 1 << 17


class OneFile:
    """Mounts itself in the mount namespace of the thread that makes it, and serves in a thread; close() releases all readers."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._content = str(folder), b"1" * 4096
        self._lock = threading.Lock()
        self._is_held = False
        self._error = 0
        self._held: list[int] = []
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"one-file", self._folder.encode(), b"fuse.one-file", 0, options.encode()) != 0:
            number = ctypes.get_errno()
            os.close(self._device)
            raise OSError(number, os.strerror(number), "mount of FUSE")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def held(self) -> int:
        """How many reads wait for an answer."""
        with self._lock:
            return len(self._held)

    def hold(self) -> None:
        """Answer no read from now on, as a server of NFS that does not respond."""
        with self._lock:
            self._is_held = True

    def refuse(self, error: int) -> None:
        """Answer all reads, also those that wait, by this error, such as ESTALE."""
        with self._lock:
            self._is_held, self._error = False, error
            for unique in self._held:
                self._reply(unique, error=error)
            self._held.clear()

    def close(self) -> None:
        """End the file system."""
        self.refuse(errno.EIO)
        ctypes.CDLL(None, use_errno=True).umount2(self._folder.encode(), _MNT_DETACH)
        self._thread.join()
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, _REQUEST_BYTES)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno not in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    raise
                continue
            _, operation, unique, node = struct.unpack_from("<IIQQ", request)
            if operation not in _UNANSWERED:
                self._answer(operation, unique, node, request[40:])

    def _answer(self, operation: int, unique: int, node: int, body: bytes) -> None:
        if operation == _INIT:
            self._reply(unique, struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0))
        elif operation == _LOOKUP and body.rstrip(b"\0") == b"data":
            self._reply(unique, struct.pack("<QQQQII", _FILE_NODE, 0, 0, 0, 0, 0) + self._attributes(_FILE_NODE))
        elif operation == _LOOKUP:
            self._reply(unique, error=errno.ENOENT)
        elif operation == _GETATTR:
            self._reply(unique, struct.pack("<QII", 0, 0, 0) + self._attributes(node))
        elif operation == _OPEN:
            self._reply(unique, struct.pack("<QII", 0, _DIRECT_IO, 0))
        elif operation == _READ:
            self._read(unique, *struct.unpack_from("<QQI", body)[1:])
        else:
            self._reply(unique, error=0 if operation in (_RELEASE, _FLUSH) else errno.ENOSYS)

    def _read(self, unique: int, offset: int, size: int) -> None:
        with self._lock:
            if self._is_held:
                self._held.append(unique)
            elif self._error:
                self._reply(unique, error=self._error)
            else:
                self._reply(unique, self._content[offset : offset + size])

    def _attributes(self, node: int) -> bytes:
        is_file = node == _FILE_NODE
        mode = stat.S_IFREG | 0o644 if is_file else stat.S_IFDIR | 0o755
        size = len(self._content) if is_file else 0
        return struct.pack("<6Q10I", node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _reply(self, unique: int, body: bytes = b"", *, error: int = 0) -> None:
        os.write(self._device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
