"""Ports: free ones for daemons, and ones that refuse connections or never answer."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator

# Below Linux's ephemeral range (32768 up), so that no outgoing connection takes a port between choice and use. Chosen by the
# system's randomness: pytest-randomly gives every worker the same seed, and workers must choose different ports.
_FIRST, _LAST = 20000, 32000


def free_ports(count: int) -> list[int]:
    """Distinct ports on which nothing listened a moment ago."""
    chosen: set[int] = set()
    while len(chosen) < count:
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if port not in chosen and _is_free(port):
            chosen.add(port)
    return sorted(chosen)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # a port with connections in TIME_WAIT is free for a daemon, which sets this option too
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port, on every loopback address, that refuses connections for as long as the block lasts."""
    with socket.socket() as holder:
        holder.bind(("", 0))
        yield int(holder.getsockname()[1])


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port, on every loopback address, that connects and never sends a byte: the kernel completes the handshake, no process accepts."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen(128)
        yield int(listener.getsockname()[1])


@contextlib.contextmanager
def unreachable_port() -> Iterator[int]:
    """A port of 127.0.0.1 that answers no connection, like a host that is cut off: its queue is full, so the kernel drops every SYN."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = int(listener.getsockname()[1])
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))  # fills the queue
        yield port
