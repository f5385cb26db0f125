"""
Whether a host's certificate vouches for it: the rules of OpenSSH, strictly read. Reads bytes, asks nobody.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from fnmatch import fnmatchcase

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.hazmat.primitives.serialization.ssh import (
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

_SAFE_RSA = (b"\0\0\0\x0crsa-sha2-512", b"\0\0\0\x0crsa-sha2-256")


class NotVouchedFor(ValueError):
    """The certificate proves nothing; the message says why, as the end of `its certificate …`."""


def check_certificate(blob: bytes, host: str, authorities: Collection[bytes], *, now: float) -> None:
    """
    Return if the certificate is one of this host, signed by one of these authorities, and valid at the time `now`.

    Args:
        blob: the certificate as it came over the wire.
        host: the name in known_hosts, without a port.
        authorities: public keys as they go over the wire.

    Raises:
        NotVouchedFor: it is not.
    """
    kind = blob[4 : 4 + int.from_bytes(blob[:4], "big")]
    try:
        certificate = load_ssh_public_identity(kind + b" " + base64.b64encode(blob))
        if not isinstance(certificate, SSHCertificate):
            raise NotVouchedFor("is a plain key")
        signer = certificate.signature_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        certificate.verify_cert_signature()
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
        if isinstance(error, NotVouchedFor):
            raise
        raise NotVouchedFor("is not properly signed") from error
    if base64.b64decode(signer.split()[1]) not in authorities:
        raise NotVouchedFor("is of another authority")
    key = certificate.signature_key()
    if isinstance(key, RSAPublicKey) and blob[-(key.key_size // 8 + 20) :][:16] not in _SAFE_RSA:  # name, length, bytes
        raise NotVouchedFor("is signed with SHA-1")
    _check_content(certificate, host, now)


def _check_content(certificate: SSHCertificate, host: str, now: float) -> None:
    if certificate.type is not SSHCertificateType.HOST:
        raise NotVouchedFor("is a user's, not a host's")
    if not certificate.valid_after <= now < certificate.valid_before:
        raise NotVouchedFor("has expired or is not valid yet")
    names = [name.decode("utf-8", "replace").lower() for name in certificate.valid_principals]
    if not any(fnmatchcase(host, name.replace("[", "[[]")) for name in names):
        raise NotVouchedFor(f"is for {', '.join(names) or 'no host by name'}")
    if certificate.critical_options:
        raise NotVouchedFor("has conditions that orch does not know")
