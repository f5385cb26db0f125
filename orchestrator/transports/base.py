"""The contract of transports: start a program on one machine and exchange bytes with it. The meaning of the bytes is in endpoint/."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

STDERR_TAIL_BYTES = 64 << 10


class ChannelClosed(Exception):
    """The channel has ended, which is an error if more bytes were expected; `exit_status` is None if it is unknown."""

    def __init__(self, exit_status: int | None, stderr: str) -> None:
        super().__init__(f"exit status {exit_status}: {stderr.strip()}")
        self.exit_status = exit_status
        self.stderr = stderr


class NoMarker(Exception):
    """The program printed something else; the message is the beginning of that output."""


class Channel(Protocol):
    """
    The stdin and stdout of a program on the node, and the tail of stderr.

    `timeout_s` is the longest silence: each byte that is transferred restarts it; then TimeoutError. If the program has closed
    its end, ChannelClosed; if the connection is lost, Unreachable. One thread may write while another one reads.
    """

    def write(self, data: bytes, *, timeout_s: float) -> None: ...

    def read_some(self, *, timeout_s: float) -> bytes:
        """Wait for bytes; return all that have arrived, at least one."""
        ...

    def close(self) -> None:
        """Close both ways; the program reads end of file from stdin."""
        ...


class Transport(Protocol):
    """A connection to one machine, made by the first `open`; several channels may be open at the same time."""

    @property
    def node(self) -> str: ...

    @property
    def remark(self) -> str:
        """A property of the connection that the user should know, the same for all nodes with it; or empty."""
        ...

    @property
    def queued_s(self) -> float:
        """The seconds that it has waited for a login slot, which are no silence of the node."""
        ...

    def open(self, argv: Sequence[str]) -> Channel:
        """
        Start a program on the machine; an argv[0] that begins with `~/` is in the user's home folder on that machine.

        Raises:
            Unreachable: there is no connection to the machine.
            LoginRefused: the machine refused the login.
            ChannelClosed: there is no such program.
        """
        ...

    def command_to_try(self, argv: Sequence[str]) -> str:
        """A command in backquotes by which the user can start the same program."""
        ...

    def close(self) -> None: ...


class ChannelReader:
    """Reads exact amounts from a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pending = bytearray()
        self.arrived_s = float("-inf")
        """When the last bytes arrived, of time.monotonic()."""

    def read_exactly(self, size: int, *, timeout_s: float) -> bytes:
        while len(self._pending) < size:
            self._wait(timeout_s)
        return self._take(size)

    def skip_to(self, marker: bytes, *, limit: int, timeout_s: float) -> bytes:
        """
        Skip everything up to the marker and return the rest of that line, without the newline.

        Raises:
            NoMarker: no such line within limit bytes.
        """
        searched = 0
        while True:
            start = self._pending.find(marker, searched)
            end = self._pending.find(b"\n", start) if start >= 0 else -1
            if end >= 0:
                self._take(start + len(marker))
                return self._take(end + 1 - start - len(marker))[:-1]
            if len(self._pending) > limit:
                raise NoMarker(self.peek())
            searched = start if start >= 0 else max(0, len(self._pending) - len(marker))
            self._wait(timeout_s)

    def peek(self, size: int = 200) -> str:
        """The beginning of the bytes that have arrived and were not read, as text."""
        return self._pending[:size].decode("utf-8", "replace").strip()

    def _wait(self, timeout_s: float) -> None:
        self._pending += self._channel.read_some(timeout_s=timeout_s)
        self.arrived_s = time.monotonic()

    def _take(self, size: int) -> bytes:
        data = bytes(memoryview(self._pending)[:size])
        del self._pending[:size]
        return data


class Tail:
    """The last STDERR_TAIL_BYTES of a stream."""

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> None:
        self._data = (self._data + data)[-STDERR_TAIL_BYTES:]

    def text(self) -> str:
        return self._data.decode("utf-8", "replace")
