"""The transport to this machine: a subprocess and its pipes."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import NodeError
from orchestrator.transports.base import ChannelClosed, Tail

BLOCK_BYTES = 1 << 18
EXIT_WAIT_S = 5.0
NOT_FOUND = 127  # as the exit status of a shell
CLOSED = "the channel was closed"  # by another thread, so that the pipes raise ValueError


class LocalTransport:
    """Starts programs on this machine, for a node of any name."""

    remark = ""
    queued_s = 0.0

    def __init__(self, node: str) -> None:
        self.node = node

    def open(self, argv: Sequence[str]) -> LocalChannel:
        """Start a program; a missing one is reported with a shell's exit status, 127."""
        program = str(Path(argv[0]).expanduser())
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=Path.home(),
                start_new_session=True,  # Ctrl-C in the terminal is for the controller alone
            )
        except OSError as error:
            if isinstance(error, (FileNotFoundError, PermissionError)):
                raise ChannelClosed(NOT_FOUND, f"{program}: {error.strerror}") from error
            raise NodeError(self.node, f"{program}: {error.strerror}") from error
        return LocalChannel(process)

    def command_to_try(self, argv: Sequence[str]) -> str:
        return f"`{shlex.join(argv)}`"

    def close(self) -> None:
        """Nothing is kept open between channels."""


class LocalChannel:
    """The pipes of one subprocess."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._tail = Tail()
        self._errors_open = True
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)

    def write(self, data: bytes, *, timeout_s: float) -> None:
        """Write all bytes; collect stderr meanwhile: a program that blocks on a full stderr stops reading."""
        unwritten = memoryview(data)
        while unwritten:
            try:
                self._wait(timeout_s, writing=True)
                unwritten = unwritten[os.write(self._stdin.fileno(), unwritten[:BLOCK_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._ended() from None
            except ValueError:
                raise ChannelClosed(None, CLOSED) from None

    def read_some(self, *, timeout_s: float) -> bytes:
        try:
            self._wait(timeout_s, writing=False)
            data = os.read(self._stdout.fileno(), BLOCK_BYTES)
        except ValueError:
            raise ChannelClosed(None, CLOSED) from None
        if not data:
            raise self._ended()
        return data

    def close(self) -> None:
        """Close the pipes and wait for the process, which ends when its stdin ends; else kill it."""
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()
        try:
            self._process.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self, timeout_s: float, *, writing: bool) -> None:
        """Wait until stdin can be written, or stdout can be read."""
        pipe = self._stdin if writing else self._stdout
        poll = select.poll()
        poll.register(pipe, select.POLLOUT if writing else select.POLLIN)
        if self._errors_open:
            poll.register(self._stderr, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
            if not ready:
                raise TimeoutError
            if self._stderr.fileno() in ready and not self._drain_stderr():
                poll.unregister(self._stderr)
            if pipe.fileno() in ready:
                return

    def _drain_stderr(self) -> bool:
        """Collect the bytes that have arrived on stderr; False if the stream has ended."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stderr.fileno(), BLOCK_BYTES):
                self._tail.add(data)
            self._errors_open = False
        return self._errors_open

    def _ended(self) -> ChannelClosed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_WAIT_S)
        if self._errors_open:
            self._drain_stderr()
        return ChannelClosed(self._process.poll(), self._tail.text())
