"""Verification of a host's key: by known_hosts, or by a certificate of an authority in it, with OpenSSH's rules."""

from __future__ import annotations

import base64
import contextlib
import socket
import time
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

import paramiko
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.hazmat.primitives.serialization.ssh import (
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

from orchestrator.errors import LoginRefused
from orchestrator.transports.ssh.known_hosts import KnownKey, host_name, known_keys, pin
from orchestrator.transports.ssh.route import Hop
from orchestrator.transports.ssh.user_keys import CERTIFICATE
from orchestrator.transports.terminal import printable_text

_SAFE_RSA = (b"\0\0\0\x0crsa-sha2-512", b"\0\0\0\x0crsa-sha2-256")


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """
    Accepts a host key that is in known_hosts or is certified by an authority in it; adds a new key with accept-new.

    The paramiko client knows no keys, so that it passes every host key to this policy.
    """

    def __init__(self, node: str, hop: Hop, *, accept_new: bool, command: str) -> None:
        """`command` is a login by the program ssh, for hints."""
        self._node = node
        self._hop = hop
        self._accept_new = accept_new
        self._command = command
        self._name = hop.key_name or host_name(hop.host, hop.port)
        entries = known_keys([*hop.user_known_hosts, *hop.global_known_hosts], self._name)
        self._known = [entry for entry in entries if not entry.authority]
        self._authorities = [entry for entry in entries if entry.authority]

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """
        Return if the key is trusted.

        Raises:
            LoginRefused: it is not.
        """
        known = self._known
        if not known and not self._authorities and self._accept_new and self._hop.user_known_hosts:
            known = pin(self._hop.user_known_hosts[0], self._name, key.get_name(), key.asbytes())
        same = [entry for entry in known if entry.blob == key.asbytes() and not entry.authority]
        if revoked := [entry for entry in same if entry.revoked]:
            raise LoginRefused(self._node, f"the host key of {self._name} is revoked ({_locations(revoked)})")
        certificate_fault = self._certificate_fault(key)
        if same or not certificate_fault:
            return
        actual = f"{key.get_name()} {key.fingerprint}"
        if [entry for entry in known if not entry.revoked]:
            text = f"the host key of {self._name} has changed: it is {actual}, but {_locations(known)} has another one"
            hint = (
                f"somebody may be intercepting the connection; if the node was reinstalled, remove {_locations(known)}"
            )
            raise LoginRefused(self._node, text, hint=hint)
        if self._authorities:
            text = f"the host key of {self._name} is not certified by an authority of {_locations(self._authorities)}: {certificate_fault}"
            hint = "have its certificate renewed (`ssh-keygen -L -f` shows it), or put its plain key into known_hosts"
            raise LoginRefused(self._node, text, hint=hint)
        hint = f"compare it and log in once with {self._command}, or set ssh.host_keys: accept-new"
        raise LoginRefused(self._node, f"the host key of {self._name} is unknown: {actual}", hint=hint)

    def _certificate_fault(self, key: paramiko.PKey) -> str:
        """The reason why the key's certificate does not prove it; empty if an authority has certified the key."""
        if key.public_blob is None:
            return "it has no certificate"
        revoked = {entry.blob for entry in self._known if entry.revoked}
        authorities = {entry.blob for entry in self._authorities} - revoked
        host = self._hop.key_name or self._hop.host.lower()
        try:
            check_certificate(key.public_blob.key_blob, host, authorities, now=time.time())
        except InvalidCertificate as error:
            return f"its certificate {error}"
        return ""

    def transport(self, sock: paramiko.transport._SocketLike, **options: object) -> paramiko.Transport:
        """Make a transport that prefers a certificate or the known kinds of keys, if the server has several."""
        transport = HostKeyTransport(sock, **options)  # type: ignore[arg-type]  # passed on as they are
        transport.prefers_certificate = bool(self._authorities)
        security = transport.get_security_options()
        known = {entry.algorithm for entry in self._known}
        if "ssh-rsa" in known:
            known |= {"rsa-sha2-512", "rsa-sha2-256"}
        security.key_types = sorted(security.key_types, key=lambda kind: kind not in known)
        return transport


def _locations(keys: Sequence[KnownKey]) -> str:
    return ", ".join(f"{key.file} line {key.line}" for key in keys)


class HostKeyTransport(paramiko.Transport):
    """Prefers a host certificate if known_hosts has an authority, keeps the server's disconnect message, and opens a session without delay."""

    prefers_certificate = False
    disconnect_message = ""
    """The reason that the server gave for ending the connection, if any."""

    def run(self) -> None:
        """Run paramiko's thread; at its end it closes its socket, which raises for a channel through a lost jump host."""
        with contextlib.suppress(EOFError):
            super().run()

    def stop_thread(self) -> None:
        """End paramiko's thread at once: it may wait for bytes, and notices the closed socket after its timeout only."""
        with contextlib.suppress(OSError, EOFError):
            self.sock.shutdown(socket.SHUT_RDWR)
        super().stop_thread()

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Certificates first if one is preferred: paramiko puts them last, so that a server shows a plain key."""
        prefers = self.prefers_certificate
        return tuple(sorted(super().preferred_keys, key=lambda kind: kind.endswith(CERTIFICATE) != prefers))

    def _parse_global_request(self, message: paramiko.Message) -> None:
        """
        Acknowledge a request of the server at once, on Linux.

        After each login sshd sends one that needs no answer (its host keys), and TCP keeps back the next message, which confirms the session,
        until that one is acknowledged: by default after 40 ms.
        """
        super()._parse_global_request(message)  # type: ignore[misc]  # private
        sock = self.sock
        if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.disconnect_message = printable_text(message.get_text())


class InvalidCertificate(ValueError):
    """The certificate does not prove the key; the message is the reason, as the end of `its certificate …`."""


def check_certificate(blob: bytes, host: str, authorities: Collection[bytes], *, now: float) -> None:
    """
    Return if the certificate is for this host, signed by one of these authorities, and valid at the time `now`.

    Args:
        blob: the certificate in the wire format.
        host: the name in known_hosts, without a port.
        authorities: public keys in the wire format.

    Raises:
        InvalidCertificate: it is not.
    """
    kind = blob[4 : 4 + int.from_bytes(blob[:4], "big")]
    try:
        certificate = load_ssh_public_identity(kind + b" " + base64.b64encode(blob))
        if not isinstance(certificate, SSHCertificate):
            raise InvalidCertificate("is a plain key")
        signer = certificate.signature_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        certificate.verify_cert_signature()
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
        if isinstance(error, InvalidCertificate):
            raise
        raise InvalidCertificate("is not properly signed") from error
    if base64.b64decode(signer.split()[1]) not in authorities:
        raise InvalidCertificate("is of another authority")
    key = certificate.signature_key()
    if isinstance(key, RSAPublicKey) and blob[-(key.key_size // 8 + 20) :][:16] not in _SAFE_RSA:  # name, length, bytes
        raise InvalidCertificate("is signed with SHA-1")
    if certificate.type is not SSHCertificateType.HOST:
        raise InvalidCertificate("is a user's, not a host's")
    if not certificate.valid_after <= now < certificate.valid_before:
        raise InvalidCertificate("has expired or is not valid yet")
    names = [name.decode("utf-8", "replace").lower() for name in certificate.valid_principals]
    if not any(fnmatchcase(host, name.replace("[", "[[]")) for name in names):
        raise InvalidCertificate(f"is for {', '.join(names) or 'no host by name'}")
    if certificate.critical_options:
        raise InvalidCertificate("has conditions that orch does not know")
