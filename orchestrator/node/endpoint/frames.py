"""
Frames of a connection: requests that arrive on stdin, replies on stdout.

A frame is a 4-byte big-endian length, a JSON object (node/protocol/), and as many raw bytes as its key "bytes" says.
"""

from __future__ import annotations

import os
import select

from orchestrator.node.system.fast_stdlib import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import BufferedReader
    from typing import Optional, Tuple

    from orchestrator.node.protocol.connection import RequestHeader

HEADER_LIMIT_BYTES = 16 << 20
SIZE_BYTES = 4
BLOCK_BYTES = 1 << 20


class Requests:
    """The frames that arrive on a stream."""

    def __init__(self, stream: BufferedReader) -> None:
        self._descriptor = stream.fileno()
        self._received = bytearray(stream.read(len(stream.peek(1))))  # the rest of what arrived with this program
        self._header: Optional[RequestHeader] = None

    def next(self, wait_s: float) -> Optional[Tuple[RequestHeader, bytes]]:
        """
        The next frame; None if it is not complete when bytes have arrived, or after wait_s.

        Raises:
            EOFError: the stream has ended.
        """
        frame = self._complete()
        if frame is None and select.select([self._descriptor], [], [], max(0.0, wait_s))[0]:
            data = os.read(self._descriptor, BLOCK_BYTES)
            if not data:
                raise EOFError
            self._received += data
            frame = self._complete()
        return frame

    def _complete(self) -> Optional[Tuple[RequestHeader, bytes]]:
        if self._header is None and len(self._received) >= SIZE_BYTES:
            length = int.from_bytes(self._received[:SIZE_BYTES], "big")
            if length > HEADER_LIMIT_BYTES:
                raise ValueError(f"a frame header of {length} bytes")
            if len(self._received) >= SIZE_BYTES + length:
                self._header = loads(self._take(SIZE_BYTES + length)[SIZE_BYTES:])
        if self._header is None or len(self._received) < self._header["bytes"]:
            return None
        header, self._header = self._header, None
        return header, self._take(header["bytes"])

    def _take(self, size: int) -> bytes:
        with memoryview(self._received) as view:
            data = bytes(view[:size])
        del self._received[:size]
        return data


def write_frame(out: int, header: Mapping[str, object], payload: bytes) -> None:
    text = dumps(header).encode()
    unwritten = memoryview(len(text).to_bytes(SIZE_BYTES, "big") + text + payload)
    while unwritten:
        unwritten = unwritten[os.write(out, unwritten) :]
