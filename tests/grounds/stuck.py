"""Servers that hang or close the connection in the middle of a login, on every loopback address: no real sshd can be made to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko


@contextlib.contextmanager
def stuck_after_banner() -> Iterator[int]:
    """A port where the server sends its SSH banner and then nothing more."""
    with _listening(lambda connection: connection.sendall(b"SSH-2.0-stuck\r\n")) as port:
        yield port


@contextlib.contextmanager
def resetting(connections: list[socket.socket]) -> Iterator[int]:
    """A port where every connection is reset at once and appended to `connections`."""

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
    A port with a paramiko server of this host key that accepts any key, but answers only when the gate opens.

    Args:
        hang_up: close the connection without an answer instead, and append the offered keys to this list.
        requests: append the names of the client's global requests, such as keepalives, to this list.
    """
    key = paramiko.Ed25519Key.from_private_key_file(str(host_key))
    transports: list[paramiko.Transport] = []

    def serve_login(connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.add_server_key(key)
        transports.append(transport)
        server = (
            _GatedServer(gate, [] if requests is None else requests)
            if hang_up is None
            else _ClosingServer(connection, hang_up)
        )
        with contextlib.suppress(paramiko.SSHException):  # the client has disconnected
            transport.start_server(event=threading.Event(), server=server)

    try:
        with _listening(serve_login) as port:
            yield port
    finally:
        gate.set()
        for transport in transports:
            transport.close()
            transport.join()


class _GatedServer(paramiko.ServerInterface):
    def __init__(self, gate: threading.Event, requests: list[str]) -> None:
        self._gate = gate
        self._requests = requests

    def get_allowed_auths(self, username: str) -> str:  # paramiko's signature
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # paramiko's signature
        self._gate.wait()
        return paramiko.common.AUTH_SUCCESSFUL

    def check_global_request(self, kind: str, msg: paramiko.Message) -> bool:  # paramiko's signature
        self._requests.append(kind)
        return False


class _ClosingServer(paramiko.ServerInterface):
    def __init__(self, connection: socket.socket, offered_keys: list[paramiko.PKey]) -> None:
        self._connection = connection
        self._offered_keys = offered_keys

    def get_allowed_auths(self, username: str) -> str:  # paramiko's signature
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # paramiko's signature
        self._offered_keys.append(key)
        self._connection.shutdown(socket.SHUT_RDWR)
        return paramiko.common.AUTH_FAILED


@contextlib.contextmanager
def _listening(handle: Callable[[socket.socket], None]) -> Iterator[int]:
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
                handle(connection)

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join()
            for connection in connections:
                connection.close()
