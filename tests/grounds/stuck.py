"""Servers that stop or hang up in the middle of a login, on every loopback address: stand-ins, for no real sshd can be told to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko


@contextlib.contextmanager
def stuck_after_greeting() -> Iterator[int]:
    """A port where the server introduces itself and then says nothing more."""
    with _listening(lambda connection: connection.sendall(b"SSH-2.0-stuck\r\n")) as port:
        yield port


@contextlib.contextmanager
def resetting(connections: list[socket.socket]) -> Iterator[int]:
    """A port where every connection is reset at once, and kept count of."""

    def reset(connection: socket.socket) -> None:
        connections.append(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with _listening(reset) as port:
        yield port


@contextlib.contextmanager
def stuck_in_login(
    host_key: Path,
    gate: threading.Event,
    *,
    hang_up: list[paramiko.PKey] | None = None,
    requests: list[str] | None = None,
) -> Iterator[int]:
    """
    A port with a paramiko server of this host key that takes any key, but makes up its mind when the gate opens.

    Args:
        hang_up: it closes the connection without a word instead, and keeps the keys that it saw there.
        requests: where it keeps the names of the global requests that come, such as keepalives.
    """
    key = paramiko.Ed25519Key.from_private_key_file(str(host_key))
    transports: list[paramiko.Transport] = []

    def greet(connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.add_server_key(key)
        transports.append(transport)
        server = (
            _Undecided(gate, [] if requests is None else requests) if hang_up is None else _Rude(connection, hang_up)
        )
        with contextlib.suppress(paramiko.SSHException):  # the client has had enough
            transport.start_server(event=threading.Event(), server=server)

    try:
        with _listening(greet) as port:
            yield port
    finally:
        gate.set()
        for transport in transports:
            transport.close()
            transport.join()


class _Undecided(paramiko.ServerInterface):
    def __init__(self, gate: threading.Event, requests: list[str]) -> None:
        self._gate = gate
        self._requests = requests

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002  paramiko's signature
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002  paramiko's signature
        self._gate.wait()
        return paramiko.common.AUTH_SUCCESSFUL

    def check_global_request(self, kind: str, msg: paramiko.Message) -> bool:  # noqa: ARG002  paramiko's signature
        self._requests.append(kind)
        return False


class _Rude(paramiko.ServerInterface):
    def __init__(self, connection: socket.socket, seen: list[paramiko.PKey]) -> None:
        self._connection = connection
        self._seen = seen

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002  paramiko's signature
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002  paramiko's signature
        self._seen.append(key)
        self._connection.shutdown(socket.SHUT_RDWR)
        return paramiko.common.AUTH_FAILED


@contextlib.contextmanager
def _listening(greet: Callable[[socket.socket], None]) -> Iterator[int]:
    connections: list[socket.socket] = []
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen(128)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # closed
                    return
                connections.append(connection)
                greet(connection)

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join()
            for connection in connections:
                connection.close()
