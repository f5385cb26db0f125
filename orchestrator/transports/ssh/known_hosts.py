"""OpenSSH's known_hosts files: the keys and authorities of a host name, and adding a new key. No connections here."""

from __future__ import annotations

import base64
import fcntl
import hmac
import os
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from orchestrator.errors import NO_LOCKS
from orchestrator.fanout import once

_MIN_FIELDS = 3
_MARKERS = ("", "@revoked", "@cert-authority")


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a file; `blob` is the public key, in the wire format, of the host or of an authority that signs host keys."""

    file: Path
    line: int
    algorithm: str
    blob: bytes
    revoked: bool
    authority: bool = False


class _HashedLine:
    """The hash of a line's host name, prepared to be compared with many names."""

    def __init__(self, salt: bytes, digest: bytes, key: KnownKey) -> None:
        self._prepared = hmac.new(salt, digestmod="sha1")
        self._digest = digest
        self.key = key

    def is_of(self, name: bytes) -> bool:
        """Compare the name's hash; a copy takes a third of the time of hmac.digest, which prepares the salt each time."""
        digest = self._prepared.copy()
        digest.update(name)
        return digest.digest() == self._digest


class _Index:
    """The keys of a file: by name for lines with plain host names, by hash for hashed ones, and by patterns."""

    def __init__(
        self, plain: dict[str, list[KnownKey]], hashed: list[_HashedLine], patterned: list[tuple[str, KnownKey]]
    ) -> None:
        self._plain = plain
        self._patterned = patterned
        self._hashed = hashed
        """The hashed lines that match none of the names looked up so far."""
        self._by_name: dict[str, list[KnownKey]] = {}
        self._lock = threading.Lock()

    def keys_of(self, name: str) -> list[KnownKey]:
        """The keys of a host name, in file order."""
        with self._lock:
            if name not in self._by_name:
                keys = self._plain.get(name, []) + [key for hosts, key in self._patterned if _matches(hosts, name)]
                encoded = name.encode()
                matching = [line for line in self._hashed if line.is_of(encoded)]
                # a hash is of one name: names that are looked up later need not be compared with these lines
                if matching:
                    self._hashed = [line for line in self._hashed if line not in matching]
                keys += [line.key for line in matching]
                self._by_name[name] = sorted(keys, key=lambda key: key.line)
            return self._by_name[name]


def host_name(host: str, port: int) -> str:
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"  # noqa: PLR2004  ssh's own port


def known_keys(files: Sequence[Path], name: str) -> list[KnownKey]:
    """All keys of a host name, in file order; a missing file is no error."""
    keys: list[KnownKey] = []
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        keys += _index(file, state.st_mtime_ns, state.st_size).keys_of(name)
    return keys


def pin(file: Path, name: str, algorithm: str, blob: bytes) -> list[KnownKey]:
    """
    Append a key, unless the file has a key of this name.

    Returns:
        The keys of the name in the file afterwards: this one, or those that another login has added in the meantime.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+b") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)  # many logins run at once, maybe in several processes
        except OSError as exc:
            if exc.errno not in NO_LOCKS:  # without a lock, a key may be added twice, which does no harm
                raise
        content = stream.read()
        # Not by known_keys: its cache may miss a line that was written within the same tick of the clock.
        if keys := _read_index(file, content).keys_of(name):
            return keys
        newline = b"" if not content or content.endswith(b"\n") else b"\n"
        stream.write(newline + f"{name} {algorithm} {base64.b64encode(blob).decode()}\n".encode())
        line = content.count(b"\n") + len(newline) + 1
    return [KnownKey(file, line, algorithm, blob, revoked=False)]


@once
def _index(file: Path, _mtime_ns: int, _size: int) -> _Index:
    """Read a file once for all nodes, and once more when it has changed."""
    try:
        return _read_index(file, file.read_bytes())
    except OSError:
        return _Index({}, [], [])


def _read_index(file: Path, content: bytes) -> _Index:
    plain: dict[str, list[KnownKey]] = defaultdict(list)
    hashed: list[_HashedLine] = []
    patterned: list[tuple[str, KnownKey]] = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < _MIN_FIELDS or fields[0].startswith("#") or marker not in _MARKERS:
            continue
        is_hashed = fields[0].startswith("|1|")
        try:
            blob = base64.b64decode(fields[2], validate=True)
            salt, digest = map(base64.b64decode, fields[0][3:].split("|")) if is_hashed else (b"", b"")
        except ValueError:
            continue
        key = KnownKey(file, number, fields[1], blob, marker == "@revoked", marker == "@cert-authority")
        if is_hashed:
            hashed.append(_HashedLine(salt, digest, key))
        elif any(character in fields[0] for character in "*?!"):
            patterned.append((fields[0], key))
        else:
            for name in fields[0].lower().split(","):
                plain[name].append(key)
    return _Index(dict(plain), hashed, patterned)


def _matches(hosts: str, name: str) -> bool:
    """Return whether the host field of a line, with patterns, matches the name."""
    patterns = [pattern.replace("[", "[[]") for pattern in hosts.lower().split(",")]  # only * and ? are special
    if any(fnmatchcase(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(fnmatchcase(name, pattern) for pattern in patterns if not pattern.startswith("!"))
