"""Run a program on a node without an endpoint, and take its output line by line as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.endpoint.container import container_failure
from orchestrator.errors import NodeError
from orchestrator.transports.base import ChannelClosed, Transport
from orchestrator.transports.container import ContainerTransport

POLL_S = 60.0
MAX_LINE_BYTES = 1 << 20
UNKNOWN = 255  # the exit code of a program that a signal ended, as of ssh
# stdout and stderr as one stream, no stdin; a single word is a line for the shell
SHELL = ("/bin/sh", "-c")
LINE = 'exec 2>&1 </dev/null; eval "$1"'
PROGRAM = 'exec "$@" 2>&1 </dev/null'


def run_program(transport: Transport, words: Sequence[str], on_line: Callable[[str], None]) -> int:
    """
    Run a program to its end and return its exit code; the transport is closed afterwards.

    Args:
        words: the program and its arguments, or one line for the shell.
        on_line: takes each line of stdout and stderr, without its newline.

    Raises:
        NodeError: there is no connection, or it was lost; or the container runs no programs.
    """
    rest = b""
    try:
        channel = transport.open([*SHELL, LINE if len(words) == 1 else PROGRAM, "sh", *words])
        try:
            while True:
                try:
                    *lines, rest = (rest + channel.read_some(timeout_s=POLL_S)).split(b"\n")
                except TimeoutError:
                    continue
                if len(rest) > MAX_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    on_line(line.decode("utf-8", "replace"))
        finally:
            channel.close()
    except ChannelClosed as closed:
        if rest:
            on_line(rest.decode("utf-8", "replace"))
        inside = transport if isinstance(transport, ContainerTransport) and closed.stderr else None
        if inside is not None and (failure := container_failure(inside, closed.stderr)):
            raise failure from closed
        if closed.exit_status is None and closed.stderr:
            raise NodeError(transport.node, closed.stderr.strip()) from closed
        return UNKNOWN if closed.exit_status is None or closed.exit_status < 0 else closed.exit_status
    finally:
        transport.close()
