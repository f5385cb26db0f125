"""
OpenSSH's known_hosts files: which host keys belong to a name, and pinning a new one. No connections here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import hmac
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import paramiko

from orchestrator.errors import LoginRefused
from orchestrator.fanout import once
from orchestrator.transports.ssh.host_certificate import NotVouchedFor, check_certificate
from orchestrator.transports.ssh.route import Hop
from orchestrator.transports.ssh.user_keys import CERTIFICATE
from orchestrator.transports.terminal import without_controls

_LEAST_FIELDS = 3
_MARKERS = ("", "@revoked", "@cert-authority")


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a file; `blob` is the public key as it goes over the wire: the host's, or of an authority that signs hosts' keys."""

    file: Path
    line: int
    algorithm: str
    blob: bytes
    revoked: bool
    authority: bool = False


@dataclass(frozen=True, slots=True)
class _Index:
    """A file, with the lines that name hosts plainly apart from those that every name has to be tried on."""

    plain: dict[str, list[KnownKey]]
    others: list[tuple[str, KnownKey]]


def host_name(host: str, port: int) -> str:
    """The name that a host goes by in the files."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"  # noqa: PLR2004  ssh's own port


def known_keys(files: Sequence[Path], name: str) -> list[KnownKey]:
    """All keys of a name, in file order; files that are not there are no error."""
    found: list[KnownKey] = []
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        index = _index(file, state.st_mtime_ns, state.st_size)
        keys = index.plain.get(name, []) + [key for hosts, key in index.others if _matches(hosts, name)]
        found += sorted(keys, key=lambda key: key.line)
    return found


def pin(file: Path, name: str, algorithm: str, blob: bytes) -> list[KnownKey]:
    """
    Append a key, unless the name has got one meanwhile.

    Returns:
        The keys of the name afterwards: just this one, unless somebody else was faster.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # many nodes at once, maybe from several processes
        content = stream.read()
        state = os.fstat(stream.fileno())
        # not by known_keys: within one tick of the clock its cache could miss what another thread has just written
        index = _read_index(file, content)
        keys = index.plain.get(name, []) + [key for hosts, key in index.others if _matches(hosts, name)]
        if keys:
            return keys
        newline = b"" if not content or content.endswith(b"\n") else b"\n"
        stream.write(newline + f"{name} {algorithm} {base64.b64encode(blob).decode()}\n".encode())
        line = content.count(b"\n") + len(newline) + 1
        assert state.st_size == len(content)
    return [KnownKey(file, line, algorithm, blob, revoked=False)]


@once
def _index(file: Path, _mtime_ns: int, _size: int) -> _Index:
    """Read it once for all nodes, and once more when it has changed."""
    try:
        return _read_index(file, file.read_bytes())
    except OSError:
        return _Index({}, [])


def _read_index(file: Path, content: bytes) -> _Index:
    plain: dict[str, list[KnownKey]] = defaultdict(list)
    others: list[tuple[str, KnownKey]] = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < _LEAST_FIELDS or fields[0].startswith("#") or marker not in _MARKERS:
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except binascii.Error:
            continue
        key = KnownKey(file, number, fields[1], blob, marker == "@revoked", marker == "@cert-authority")
        if any(character in fields[0] for character in "|*?!"):
            others.append((fields[0], key))
        else:
            for name in fields[0].lower().split(","):
                plain[name].append(key)
    return _Index(dict(plain), others)


def _matches(hosts: str, name: str) -> bool:
    """Whether the host field of a line, hashed or of patterns, is about the name."""
    if hosts.startswith("|1|"):
        _, _, salt, digest = hosts.split("|", 3)
        try:
            expected = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
            return hmac.compare_digest(expected, base64.b64decode(digest))
        except binascii.Error:
            return False
    patterns = [pattern.replace("[", "[[]") for pattern in hosts.lower().split(",")]  # only * and ? are special
    if any(fnmatchcase(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(fnmatchcase(name, pattern) for pattern in patterns if not pattern.startswith("!"))


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """
    Accepts a host key that known_hosts has or an authority in it vouches for, pins a new one where that is asked for,
    and refuses all others.

    The client itself knows no keys, so that paramiko asks this policy about every one.
    """

    def __init__(self, node: str, hop: Hop, *, accept_new: bool) -> None:
        self._node = node
        self._hop = hop
        self._accept_new = accept_new
        self._name = hop.key_name or host_name(hop.host, hop.port)
        entries = known_keys([*hop.user_known_hosts, *hop.global_known_hosts], self._name)
        self._known = [entry for entry in entries if not entry.authority]
        self._authorities = [entry for entry in entries if entry.authority]

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """
        Return if the key may be trusted.

        Raises:
            LoginRefused: it may not.
        """
        known = self._known
        if not known and not self._authorities and self._accept_new and self._hop.user_known_hosts:
            known = pin(self._hop.user_known_hosts[0], self._name, key.get_name(), key.asbytes())
        same = [entry for entry in known if entry.blob == key.asbytes() and not entry.authority]
        if revoked := [entry for entry in same if entry.revoked]:
            raise LoginRefused(self._node, f"the host key of {self._name} is revoked ({_where(revoked)})")
        why_not = self._why_not_vouched_for(key)
        if same or not why_not:
            return
        found = f"{key.get_name()} {key.fingerprint}"
        if [entry for entry in known if not entry.revoked]:
            raise LoginRefused(
                self._node,
                f"the host key of {self._name} has changed: it is {found}, but {_where(known)} says otherwise",
                hint=f"somebody may be listening in; if the node was reinstalled, remove {_where(known)}",
            )
        if self._authorities:
            raise LoginRefused(
                self._node,
                f"the host key of {self._name} is vouched for by no authority of {_where(self._authorities)}: {why_not}",
                hint="have its certificate renewed (`ssh-keygen -L -f` shows it), or put its plain key into known_hosts",
            )
        raise LoginRefused(
            self._node,
            f"the host key of {self._name} is unknown: {found}",
            hint=f"compare it and log in once with `ssh {self._hop.address} true`, or set ssh.host_keys: accept-new",
        )

    def _why_not_vouched_for(self, key: paramiko.PKey) -> str:
        """Empty when a certificate that an authority has signed came with the key."""
        if key.public_blob is None:
            return "it shows no certificate"
        revoked = {entry.blob for entry in self._known if entry.revoked}
        authorities = {entry.blob for entry in self._authorities} - revoked
        host = self._hop.key_name or self._hop.host.lower()
        try:
            check_certificate(key.public_blob.key_blob, host, authorities, now=time.time())
        except NotVouchedFor as error:
            return f"its certificate {error}"
        return ""

    def transport(self, sock: paramiko.transport._SocketLike, **options: object) -> paramiko.Transport:
        """A transport that asks for a kind of key that is known, where the server has several."""
        transport = _Transport(sock, **options)  # type: ignore[arg-type]  # passed on as they are
        transport.wants_certificate = bool(self._authorities)
        security = transport.get_security_options()
        known = {entry.algorithm for entry in self._known}
        if "ssh-rsa" in known:
            known |= {"rsa-sha2-512", "rsa-sha2-256"}
        security.key_types = sorted(security.key_types, key=lambda kind: kind not in known)
        return transport


def _where(keys: Sequence[KnownKey]) -> str:
    return ", ".join(f"{key.file} line {key.line}" for key in keys)


class _Transport(paramiko.Transport):
    """Asks for certificates where they help, keeps the server's last word, and ends quietly."""

    wants_certificate = False
    farewell = ""
    """Why the server ended the connection, if it said so."""

    def run(self) -> None:
        """Paramiko closes its socket at the end; a channel of a lost jump host cannot say farewell and raises."""
        with contextlib.suppress(EOFError):
            super().run()

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Paramiko puts certificates last, where a plain key always comes first."""
        return tuple(
            sorted(super().preferred_keys, key=lambda kind: kind.endswith(CERTIFICATE) != self.wants_certificate)
        )

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = without_controls(message.get_text())
