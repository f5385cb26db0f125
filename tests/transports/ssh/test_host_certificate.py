"""What a host's certificate has to be; that a real sshd shows one is tests/ssh/test_certificates.py."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from orchestrator.transports.ssh.host_certificate import NotVouchedFor, check_certificate
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


def why_not(shown: bytes, authority: Path, host: str = "n0") -> str:
    with pytest.raises(NotVouchedFor) as caught:
        check_certificate(shown, host, {blob(authority.with_suffix(".pub"))}, now=NOW)
    return str(caught.value)


@pytest.mark.parametrize("names", ["n0", "x,N0", "n?", "*"])
def test_a_certificate_for_the_host_will_do(authority: Path, names: str) -> None:
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
def test_a_certificate_for_something_else_proves_nothing(authority: Path, options: list[str], why: str) -> None:
    assert why_not(certificate(authority, *options), authority) == why


def test_no_byte_of_a_certificate_may_be_changed(authority: Path) -> None:
    shown = certificate(authority, "-h", "-n", "n0")
    for place in range(0, len(shown), 7):
        changed = shown[:place] + bytes([shown[place] ^ 1]) + shown[place + 1 :]
        assert why_not(changed, authority)


@pytest.mark.parametrize("shown", [b"", b"\0\0\0\x0bssh-ed25519", b"\xff" * 40, b"\0\0\0\x04a b\n" * 9])
def test_what_is_no_certificate_proves_nothing(authority: Path, shown: bytes) -> None:
    assert why_not(shown, authority)


def test_a_plain_key_is_no_certificate(authority: Path) -> None:
    assert why_not(blob(authority.with_suffix(".pub")), authority) == "is a plain key"
