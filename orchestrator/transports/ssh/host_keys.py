"""
OpenSSH's known_hosts files: which host keys belong to a name, and pinning a new one. No connections here.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import functools
import hashlib
import hmac
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

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


@functools.lru_cache(maxsize=16)
def _index(file: Path, _mtime_ns: int, _size: int) -> _Index:
    """Read once for a thousand nodes, and again when the file has changed."""
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
