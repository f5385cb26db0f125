"""
Send files to an endpoint: the requests of a transfer, the same from the controller and from a node that has the files.

The receiver reports what it has; the rest follows in blocks, some of which are in flight at the same time. Many small files share a
block. Each file is hashed while it is read, and the receiver compares.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections import deque

from orchestrator.node.protocol.operations import DIGEST, FINISH, KEEP_TIME, OFFER, PUT_PIECES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Deque, Iterator, List, Tuple

    from orchestrator.node.protocol.transfer import DigestRequest, FileEntry, KeepTimeRequest, PiecesRequest

    Piece = Tuple[int, int, int, str]

ALIKE, SAME_SIZE = -1, -2
"""States in an offer: size and time are those of the file that is sent; the size is, and the content must be compared."""
FIRST_BYTES, LEAST_BYTES, MOST_BYTES = (
    1 << 18,
    1 << 15,
    1 << 20,
)  # of a block: the memory for a transfer is some of these
IN_FLIGHT = 4
SLOW_S, FAST_S = 2.0, 0.5  # from the request to the reply
MOST_PIECES = 1000  # in a block
READ_BYTES = 1 << 20
TRIES = 2


class Peer:
    """The connection to the endpoint that receives the files; requests are answered in their order."""

    def begin(self, op: Any, request: Any, payload: bytes = b"") -> Any:  # noqa: ANN401  of an operation
        """Send a request; return a ticket for its reply."""
        raise NotImplementedError

    def end(self, ticket: Any) -> Any:  # noqa: ANN401
        """Wait for the reply; an exception that names the node if the request failed."""
        raise NotImplementedError


class TransferError(Exception):
    """The files cannot be sent; the message is the reason, `hint` the next step."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def packed(entries: Sequence[FileEntry]) -> bytes:
    return zlib.compress(json.dumps(entries).encode(), 1)


def unpacked(data: bytes) -> List[FileEntry]:
    entries: List[FileEntry] = json.loads(zlib.decompress(data))
    return entries


class Transfer:
    """The files of one sender on their way to a folder of one node."""

    def __init__(
        self,
        peer: Peer,
        entries: Sequence[FileEntry],
        sources: Sequence[str],
        on_share: Callable[[float], object] = lambda _share: None,
    ) -> None:
        """`sources` are the paths of the entries on this machine; `on_share` takes the completed share of all bytes."""
        self._peer = peer
        self._entries = entries
        self._sources = sources
        self._on_share = on_share
        self._total = max(1, sum(entry["size"] for entry in entries))
        self._block_bytes = self._free_bytes = FIRST_BYTES
        """The size of a block, and the bytes by which the present one is smaller."""
        self.done_bytes = 0
        self.sent_bytes = 0

    def run(self, folder: str) -> None:
        """
        Send what the folder lacks; at the end it has all files.
        Raises TransferError: the disk is too small, or a file has changed while it was sent.
        """
        reply = self._peer.end(self._peer.begin(OFFER, {"folder": folder}, packed(self._entries)))
        if reply["missing_bytes"]:
            free, needed = reply["free_bytes"], reply["free_bytes"] + reply["missing_bytes"]
            raise TransferError(
                f"{folder}: {gigabytes(needed)} are needed and {gigabytes(free)} are free on its file system: "
                f"{gigabytes(reply['missing_bytes'])} are missing",
                hint="free space there, or name a folder on another disk: --to DIR",
            )
        waiting = self._lacking(reply["states"])
        for tries_left in reversed(range(TRIES)):
            damaged = self._send(waiting)
            if not damaged:
                break
            if not tries_left:
                name = self._entries[damaged[0]]["path"]
                raise TransferError(
                    f"{folder}/{name}: the content that arrived is not that which was sent",
                    hint="check the disk and the memory of both machines, and repeat the command",
                )
            self.done_bytes -= sum(self._entries[index]["size"] for index in damaged)
            waiting = [(index, 0) for index in damaged]
        self._peer.end(self._peer.begin(FINISH, {}))

    def _lacking(self, states: Sequence[int]) -> List[Tuple[int, int]]:
        """The files to send, each with the offset at which it continues: what the node has up to there is compared."""
        found: List[Tuple[int, int]] = []
        for index, (entry, state) in enumerate(zip(self._entries, states)):
            if entry["kind"] != "file" or state == ALIKE:
                self._advance(entry["size"])
            elif state == SAME_SIZE:
                if self._begins_alike(index, entry["size"], is_part=False):
                    request: KeepTimeRequest = {"index": index}
                    self._peer.end(self._peer.begin(KEEP_TIME, request))
                    self._advance(entry["size"])
                else:
                    found.append((index, 0))
            else:
                is_usable = state > 0 and self._begins_alike(index, state, is_part=True)
                found.append((index, state if is_usable else 0))
        return found

    def _begins_alike(self, index: int, size: int, *, is_part: bool) -> bool:
        request: DigestRequest = {"index": index, "size": size, "is_part": is_part}
        ticket = self._peer.begin(DIGEST, request)
        with open(self._sources[index], "rb") as file:
            here = hashed(file.fileno(), size).hexdigest()  # while the node does the same
        return bool(self._peer.end(ticket)["sha256"] == here)

    def _send(self, waiting: Sequence[Tuple[int, int]]) -> List[int]:
        """Send the rest of these files; return those that arrived damaged."""
        in_flight: Deque[Tuple[Any, int, float]] = deque()
        damaged: List[int] = []

        def end_oldest() -> None:
            ticket, size, begun_s = in_flight.popleft()
            damaged.extend(self._peer.end(ticket)["damaged"])
            self._advance(size)
            self.sent_bytes += size
            # on a slow link the blocks are small, so that each reply arrives in time
            elapsed_s = time.monotonic() - begun_s
            if elapsed_s > SLOW_S:
                self._block_bytes = max(LEAST_BYTES, self._block_bytes // 2)
            elif elapsed_s < FAST_S and size >= self._block_bytes:
                self._block_bytes = min(MOST_BYTES, 2 * self._block_bytes)

        for pieces, data in self._blocks(waiting):
            request: PiecesRequest = {"pieces": pieces}
            begun_s = time.monotonic()
            in_flight.append((self._peer.begin(PUT_PIECES, request, data), len(data), begun_s))
            if len(in_flight) == IN_FLIGHT:
                end_oldest()
        while in_flight:
            end_oldest()
        return damaged

    def _advance(self, size: int) -> None:
        self.done_bytes += size
        self._on_share(self.done_bytes / self._total)

    def _blocks(self, waiting: Sequence[Tuple[int, int]]) -> Iterator[Tuple[List[Piece], bytes]]:
        """The rest of these files, in blocks of pieces."""
        pieces: List[Piece] = []
        data: List[bytes] = []
        self._free_bytes = self._block_bytes
        for index, offset in waiting:
            self._advance(offset)
            for piece, content in self._pieces(index, offset):
                pieces.append(piece)
                data.append(content)
                self._free_bytes -= len(content)
                if self._free_bytes <= 0 or len(pieces) >= MOST_PIECES:
                    yield pieces, data[0] if len(data) == 1 else b"".join(data)
                    pieces, data, self._free_bytes = [], [], self._block_bytes
        if pieces:
            yield pieces, b"".join(data)

    def _pieces(self, index: int, offset: int) -> Iterator[Tuple[Piece, bytes]]:
        """The pieces of a file from an offset on, each as large as the block has space."""
        entry, path = self._entries[index], self._sources[index]
        with open(path, "rb", buffering=0) as file:
            digest = hashed(file.fileno(), offset)
            file.seek(offset)
            while True:
                content = file.read(min(max(1, self._free_bytes), entry["size"] - offset)) or b""
                digest.update(content)
                end = offset + len(content)
                is_last = end == entry["size"]
                if is_last or not content:
                    self._require_unchanged(path, entry, os.fstat(file.fileno()))
                yield (index, offset, len(content), digest.hexdigest() if is_last else ""), content
                offset = end
                if is_last:
                    return

    @staticmethod
    def _require_unchanged(path: str, entry: FileEntry, state: os.stat_result) -> None:
        if (state.st_size, state.st_mtime_ns) != (entry["size"], entry["mtime_ns"]):
            raise TransferError(f"{path} has changed while it was sent", hint="repeat the command once it is complete")


def hashed(descriptor: int, size: int) -> Any:  # noqa: ANN401  a hash, whose class has no public name
    """The SHA-256 of the first `size` bytes of a file, to be continued."""
    digest, offset = hashlib.sha256(), 0
    while offset < size:
        data = os.pread(descriptor, min(READ_BYTES, size - offset), offset)
        if not data:
            break
        digest.update(data)
        offset += len(data)
    return digest


def gigabytes(size: int) -> str:
    """A size in GB, of small ones in MB, rounded up."""
    if size < 10**9:
        return f"{-(-size // 10**6)} MB"
    return f"{-(-size // 10**8) / 10:.1f} GB"
