"""A program on a node over ssh: the reply to its start request, and its streams."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import paramiko

from orchestrator.errors import Unreachable
from orchestrator.transports.base import ChannelClosed, Tail

EXIT_WAIT_S = 5.0
BLOCK_BYTES = 1 << 18
DRAIN_S = 1.0


@contextlib.contextmanager
def answered_within(timeout_s: float, channel: paramiko.Channel) -> Iterator[None]:
    """
    Close the connection if a request is not answered in time: paramiko has no timeout for it.

    Raises:
        TimeoutError: it was closed.
    """
    timed_out = threading.Event()

    def close_connection() -> None:
        timed_out.set()
        channel.get_transport().close()
        channel.event.set()  # paramiko does not wake a request that was made just before the connection was lost

    timer = threading.Timer(timeout_s, close_connection)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        if timed_out.is_set():
            raise TimeoutError(f"no answer for {timeout_s:g} s") from error
        raise
    finally:
        timer.cancel()


class SshChannel:
    """The streams of a program on the node."""

    def __init__(self, node: str, channel: paramiko.Channel) -> None:
        self._node = node
        self._channel = channel
        self._channel.settimeout(DRAIN_S)
        self._tail = Tail()

    def write(self, data: bytes, *, timeout_s: float) -> None:
        unwritten = memoryview(data)
        deadline = time.monotonic() + timeout_s
        while unwritten:
            try:
                unwritten = unwritten[self._channel.send(bytes(unwritten[:BLOCK_BYTES])) :]
                deadline = time.monotonic() + timeout_s
            except TimeoutError:  # of `read_some`, perhaps in another thread: a channel has one timeout
                if time.monotonic() >= deadline:
                    raise
            except (OSError, EOFError):  # closed, or nothing was acknowledged for LOST_AFTER_S
                raise self._ended() from None

    def read_some(self, *, timeout_s: float) -> bytes:
        """Wait for bytes; return all that have arrived. Collect stderr meanwhile: it shares the window of the channel."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._drain_stderr()
            self._channel.settimeout(max(0.0, min(DRAIN_S, deadline - time.monotonic())))
            try:
                data = self._channel.recv(BLOCK_BYTES)
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                continue
            if not data:
                raise self._ended()
            return data

    def close(self) -> None:
        """Close both directions; if the connection is lost, the channel is closed already."""
        with contextlib.suppress(OSError, EOFError):
            self._channel.close()

    def _drain_stderr(self) -> None:
        while self._channel.recv_stderr_ready():
            self._tail.add(self._channel.recv_stderr(BLOCK_BYTES))

    def _ended(self) -> ChannelClosed | Unreachable:
        self._channel.status_event.wait(EXIT_WAIT_S)
        self._drain_stderr()
        transport = self._channel.get_transport()
        if not self._channel.exit_status_ready() or (self._channel.exit_status == -1 and not transport.is_active()):
            return Unreachable(self._node, "the connection was lost")
        return ChannelClosed(self._channel.exit_status, self._tail.text())
