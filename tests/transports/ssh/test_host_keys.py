"""The check of a host's certificate; tests/ssh/test_certificates.py has those of a real sshd."""

from __future__ import annotations

import base64
import socket
import time
from pathlib import Path

import paramiko
import pytest

from orchestrator.transports.ssh.host_keys import HostKeyTransport, InvalidCertificate, check_certificate
from tests.grounds.sshd import certify, make_key

NOW = 1_800_000_000.0


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return make_key(tmp_path / "authority")


def blob(file: Path) -> bytes:
    return base64.b64decode(file.read_text().split()[1])


def certificate(authority: Path, *options: str) -> bytes:
    key = make_key(authority.with_name("host"))
    return blob(certify(key.with_suffix(".pub"), authority, *options))


def fault(shown: bytes, authority: Path, host: str = "n0") -> str:
    with pytest.raises(InvalidCertificate) as caught:
        check_certificate(shown, host, {blob(authority.with_suffix(".pub"))}, now=NOW)
    return str(caught.value)


@pytest.mark.parametrize("names", ["n0", "x,N0", "n?", "*"])
def test_certificate_for_the_host_is_accepted(authority: Path, names: str) -> None:
    shown = certificate(authority, "-h", "-n", names)
    check_certificate(shown, "n0", {b"other", blob(authority.with_suffix(".pub"))}, now=NOW)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["-n", "n0"], "is a user's, not a host's"),
        (["-h", "-n", "n00,n[0]"], "is for n00, n[0]"),
        (["-h", "-n", "n0", "-O", "critical:new@example.com=x"], "has conditions that orch does not know"),
        (["-h", "-n", "n0", "-V", "20200101:20210101"], "has expired or is not valid yet"),
    ],
)
def test_certificate_for_something_else_is_rejected(authority: Path, options: list[str], why: str) -> None:
    assert fault(certificate(authority, *options), authority) == why


def test_no_byte_of_a_certificate_may_be_changed(authority: Path) -> None:
    shown = certificate(authority, "-h", "-n", "n0")
    for index in range(0, len(shown), 7):
        changed = shown[:index] + bytes([shown[index] ^ 1]) + shown[index + 1 :]
        assert fault(changed, authority)


@pytest.mark.parametrize("shown", [b"", b"\0\0\0\x0bssh-ed25519", b"\xff" * 40, b"\0\0\0\x04a b\n" * 9])
def test_bytes_that_are_no_certificate_are_rejected(authority: Path, shown: bytes) -> None:
    assert fault(shown, authority)


def test_a_plain_key_is_no_certificate(authority: Path) -> None:
    assert fault(blob(authority.with_suffix(".pub")), authority) == "is a plain key"


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux delays and forces acknowledgements so")
def test_request_of_the_server_is_acknowledged_before_the_next_message() -> None:
    """A server without TCP_NODELAY sends its second message once the first one is acknowledged, which Linux delays by 40 ms."""
    assert min(_wait_for_second_message() for _ in range(20)) < 0.03


def _wait_for_second_message() -> float:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as server:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)  # as after messages in both directions
        server.sendall(b"1")
        server.sendall(b"2")
        assert client.recv(1) == b"1"
        begun = time.monotonic()
        HostKeyTransport(client)._parse_global_request(_server_request())  # as paramiko's thread does
        assert client.recv(1) == b"2"
        return time.monotonic() - begun


def test_request_of_a_server_behind_a_proxy_command_is_read() -> None:
    client, server = socket.socketpair()
    with client, server:
        HostKeyTransport(client)._parse_global_request(_server_request())


def _server_request() -> paramiko.Message:
    """A global request that needs no answer."""
    name = b"hostkeys-00@openssh.com"
    return paramiko.Message(len(name).to_bytes(4, "big") + name + b"\0")
