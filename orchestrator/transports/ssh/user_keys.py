"""The user's keys in ssh's order: the agent's keys, then keys from files, each after its certificates."""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
import os
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH

from orchestrator.fanout import once
from orchestrator.transports.ssh.route import Hop
from orchestrator.transports.terminal import TRIES, Terminal

DEFAULT_IDENTITIES = tuple(
    Path("~/.ssh", name) for name in ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
)
CERTIFICATE = "-cert-v01@openssh.com"


class Keyring:
    """The terminal and the keys unlocked at it; shared by the connections of a command."""

    def __init__(self, terminal: Terminal | None = None) -> None:
        self._terminal = terminal

    @property
    def terminal(self) -> Terminal | None:
        """The terminal for prompts; None if nobody can answer them."""
        return self._terminal if self._terminal is not None and self._terminal.is_available() else None

    def unlocked(self, file: Path, terminal: Terminal) -> paramiko.PKey | None:
        """The key of a file with a passphrase, which is prompted for once; None if all answers were wrong."""
        with terminal.locked():
            if file in terminal.unlocked:
                return terminal.unlocked[file]
            key: paramiko.PKey | None = None
            for _ in range(TRIES):
                passphrase = terminal.prompt(f"passphrase of {file}: ")
                with contextlib.suppress(ValueError, TypeError, paramiko.SSHException):  # wrong or empty
                    key = _loaded(file, passphrase)
                    break
            terminal.unlocked[file] = key
            return key


class UserKeys:
    """
    The keys for one login.

    Once the keys have been iterated, `faults` lists the files that could not be used, `security_keys` the files whose private
    part is in a security key, which paramiko cannot use.
    """

    def __init__(self, hop: Hop, keyring: Keyring) -> None:
        self._hop = hop
        self._keyring = keyring
        self._files = [file.expanduser() for file in hop.identities or DEFAULT_IDENTITIES]
        self._agent: paramiko.Agent | None = None
        self.faults: list[str] = []
        self.security_keys: list[Path] = []

    def close(self) -> None:
        """Close the agent connection; its keys cannot sign afterwards."""
        if self._agent is not None:
            self._agent.close()

    def __iter__(self) -> Iterator[paramiko.PKey]:
        """Each key, after its certificates; the files whose passphrases must be prompted for come last."""
        agent_keys = self._agent_keys()
        certificates = self._certificates()
        offered: set[bytes] = set()
        for key in itertools.chain(agent_keys, self._file_keys(offered)):
            blob = key.asbytes()
            if blob in offered:
                continue
            offered.add(blob)
            for certificate in certificates:
                if certificate not in offered and _certifies(certificate, blob):
                    yield _certified(key, certificate)
            yield key

    def _agent_keys(self) -> list[paramiko.AgentKey]:
        """The agent's keys, the configured ones first; the agent lists a certificate as a separate key."""
        if self._hop.agent is None:
            return []
        try:
            self._agent = _Agent(self._hop.agent)
        except (OSError, paramiko.SSHException) as error:
            self.faults.append(f"the ssh agent at {self._hop.agent}: {getattr(error, 'strerror', None) or error}")
            return []
        identities = {blob for file in self._files if (blob := _public_blob(file))}
        held = self._agent.get_keys()
        keys = [_AgentCertificate(key.agent, key.blob) if key.name.endswith(CERTIFICATE) else key for key in held]
        configured = [key for key in keys if any(key.blob == blob or _certifies(key.blob, blob) for blob in identities)]
        return configured if self._hop.identities_only else configured + [key for key in keys if key not in configured]

    def _file_keys(self, offered: set[bytes]) -> Iterator[paramiko.PKey]:
        locked = []
        for file in self._files:
            public = _public_blob(file)
            if public in offered:
                continue
            if public is not None and public[4:].startswith(b"sk-"):
                self.security_keys.append(file)
                continue
            try:
                yield _private_key(file, _checked_mtime_ns(file))
            except FileNotFoundError:
                continue
            except TypeError:  # from cryptography: a passphrase is needed
                locked.append(file)
            except (OSError, ValueError, paramiko.SSHException) as error:
                self.faults.append(f"{file}: {error}")
        for file in locked:
            terminal = self._keyring.terminal
            if terminal is None:
                self.faults.append(f"{file} needs a passphrase, so ssh-add it")
            elif (key := self._keyring.unlocked(file, terminal)) is not None:
                yield key
            else:
                self.faults.append(f"{file}: the passphrase was wrong")

    def _certificates(self) -> list[bytes]:
        found = []
        for file in (*self._hop.certificates, *(Path(f"{file}-cert.pub") for file in self._files)):
            try:
                _, text = file.read_bytes().split()[:2]
                found.append(base64.b64decode(text, validate=True))
            except FileNotFoundError:
                if file in self._hop.certificates:  # the file beside a key is optional
                    self.faults.append(f"CertificateFile {file} does not exist")
            except (OSError, ValueError) as error:
                self.faults.append(f"{file}: {error}")
        return found


class _Agent(paramiko.Agent):
    """The agent at a socket; paramiko's own looks for SSH_AUTH_SOCK alone."""

    def __init__(self, path: Path) -> None:
        AgentSSH.__init__(self)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            self._connect(connection)  # type: ignore[attr-defined]  # private
        except BaseException:
            connection.close()
            raise


class _AgentCertificate(paramiko.AgentKey):
    """A certificate that the agent holds with its key; agent and node identify it by the complete blob."""

    def asbytes(self) -> bytes:
        return self.blob


def _certified(key: paramiko.PKey, certificate: bytes) -> paramiko.PKey:
    certified = paramiko.AgentKey(key.agent, key.blob) if isinstance(key, paramiko.AgentKey) else copy.copy(key)
    certified.load_certificate(paramiko.Message(certificate))
    return certified


def _certifies(certificate: bytes, key: bytes) -> bool:
    """Return whether a certificate is for this public key: after type and nonce it has the key's fields after its type."""
    return _without_fields(certificate, 2).startswith(_without_fields(key, 1)) and key not in (b"", certificate)


def _without_fields(blob: bytes, fields: int) -> bytes:
    message = paramiko.Message(blob)
    for _ in range(fields):
        message.get_binary()
    return message.get_remainder()


def _checked_mtime_ns(file: Path) -> int:
    """The time of the last change; ValueError if others can read the user's file, which ssh does not use then."""
    state = file.stat()
    if state.st_uid == os.getuid() and state.st_mode & 0o077:
        mode = state.st_mode & 0o777
        raise ValueError(f"permissions {mode:04o} are too open: chmod 600 {shlex.quote(str(file))}")
    return state.st_mtime_ns


@once
def _private_key(file: Path, _mtime_ns: int) -> paramiko.PKey:
    """Read the key once for all nodes."""
    return _loaded(file, None)


def _loaded(file: Path, passphrase: bytes | None) -> paramiko.PKey:
    key = paramiko.PKey.from_path(file, passphrase)  # type: ignore[arg-type]  # needs bytes, though annotated as str
    key.public_blob = None  # from a certificate beside the file, which _certificates reads, too
    return key


def _public_blob(file: Path) -> bytes | None:
    try:
        return base64.b64decode(Path(f"{file}.pub").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
