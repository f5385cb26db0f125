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
    from typing import Optional, Tuple, Union

    from orchestrator.node.protocol.connection import RequestHeader

HEADER_LIMIT_BYTES = 16 << 20
SIZE_BYTES = 4
READ_BYTES = 1 << 16  # of headers, and of what arrives with them


class Requests:
    """The frames that arrive on a stream."""

    def __init__(self, stream: BufferedReader) -> None:
        self._descriptor = stream.fileno()
        self._received = bytearray(stream.read(len(stream.peek(1))))  # the rest of what arrived with this program
        self._header: Optional[RequestHeader] = None
        self._payload = bytearray()
        self._filled = 0  # bytes of the payload

    def next(self, wait_s: float) -> Optional[Tuple[RequestHeader, Union[bytes, bytearray]]]:
        """
        The next frame; None if it is not complete when bytes have arrived, or after wait_s.
        Raises EOFError: the stream has ended.
        """
        frame = self._complete()
        if frame is None and select.select([self._descriptor], [], [], max(0.0, wait_s))[0]:
            if self._header is None:
                data = os.read(self._descriptor, READ_BYTES)
                self._received += data
                size = len(data)
            else:  # to its final position: a copy of gigabytes takes longer than to hash them
                with memoryview(self._payload) as view:
                    size = os.readv(self._descriptor, [view[self._filled :]])
                self._filled += size
            if not size:
                raise EOFError
            frame = self._complete()
        return frame

    def _complete(self) -> Optional[Tuple[RequestHeader, Union[bytes, bytearray]]]:
        if self._header is None and len(self._received) >= SIZE_BYTES:
            length = int.from_bytes(self._received[:SIZE_BYTES], "big")
            if length > HEADER_LIMIT_BYTES:
                raise ValueError(f"a frame header of {length} bytes")
            if len(self._received) >= SIZE_BYTES + length:
                self._header = loads(bytes(self._received[SIZE_BYTES : SIZE_BYTES + length]))
                del self._received[: SIZE_BYTES + length]
                self._payload = bytearray(self._header["bytes"])
                self._filled = min(len(self._received), len(self._payload))
                self._payload[: self._filled] = self._received[: self._filled]
                del self._received[: self._filled]
        if self._header is None or self._filled < len(self._payload):
            return None
        header, self._header = self._header, None
        return header, self._payload


def write_frame(out: int, header: Mapping[str, object], payload: bytes) -> None:
    text = dumps(header).encode()
    unwritten = memoryview(len(text).to_bytes(SIZE_BYTES, "big") + text + payload)
    while unwritten:
        unwritten = unwritten[os.write(out, unwritten) :]
