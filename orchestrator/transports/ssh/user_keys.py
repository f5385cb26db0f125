"""
The user's keys in the order in which ssh offers them: of the agent and of files, each with its certificates first.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
from collections.abc import Iterator
from pathlib import Path

import paramiko

from orchestrator.fanout import once
from orchestrator.transports.ssh.route import Hop
from orchestrator.transports.terminal import TRIES, Terminal

DEFAULT_IDENTITIES = tuple(Path("~/.ssh", name) for name in ("id_rsa", "id_ecdsa", "id_ed25519"))
CERTIFICATE = "-cert-v01@openssh.com"


class Keyring:
    """What is shared by the connections of a command: the terminal, and the keys that somebody has unlocked at it."""

    def __init__(self, terminal: Terminal | None = None) -> None:
        self._terminal = terminal

    @property
    def terminal(self) -> Terminal | None:
        """Where questions can be asked; None where nobody would see them."""
        return self._terminal if self._terminal is not None and self._terminal.is_there() else None

    def unlocked(self, file: Path, terminal: Terminal) -> paramiko.PKey | None:
        """The key of a file with a passphrase, which is asked for once; None if it was wrong each time."""
        with terminal.turn():
            if file not in terminal.unlocked:
                terminal.unlocked[file] = _unlock(file, terminal)
            return terminal.unlocked[file]


def _unlock(file: Path, terminal: Terminal) -> paramiko.PKey | None:
    for _ in range(TRIES):
        passphrase = terminal.ask(f"passphrase of {file}: ")
        with contextlib.suppress(ValueError, TypeError, paramiko.SSHException):  # wrong, or none
            return _loaded(file, passphrase)
    return None


class UserKeys:
    """The keys for one login; `troubles` tells what could not be used, and is complete when they have been gone through."""

    def __init__(self, hop: Hop, keyring: Keyring) -> None:
        self._hop = hop
        self._keyring = keyring
        self._files = [file.expanduser() for file in hop.identities or DEFAULT_IDENTITIES]
        self._agent: paramiko.Agent | None = None
        self.troubles: list[str] = []

    def close(self) -> None:
        """Close the agent connection; its keys cannot sign afterwards."""
        if self._agent is not None:
            self._agent.close()

    def __iter__(self) -> Iterator[paramiko.PKey]:
        """Each key, behind the certificates that are about it; the passphrases of files are asked for last."""
        of_agent = self._agent_keys()
        certificates = self._certificates()
        offered: set[bytes] = set()
        for key in itertools.chain(of_agent, self._file_keys(offered)):
            blob = key.asbytes()
            if blob in offered:
                continue
            offered.add(blob)
            yield from (_certified(key, one) for one in certificates if one not in offered and _is_about(one, blob))
            yield key

    def _agent_keys(self) -> list[paramiko.AgentKey]:
        """Those that are configured first, then its others; a certificate of the agent is a key of its own."""
        if not self._hop.agent:
            return []
        self._agent = paramiko.Agent()
        configured = {blob for file in self._files if (blob := _public_blob(file))}
        keys = [_of_agent(key) for key in self._agent.get_keys()]
        first = [key for key in keys if any(key.blob == blob or _is_about(key.blob, blob) for blob in configured)]
        return first if self._hop.identities_only else first + [key for key in keys if key not in first]

    def _file_keys(self, offered: set[bytes]) -> Iterator[paramiko.PKey]:
        locked = []
        for file in self._files:
            if _public_blob(file) in offered:
                continue
            try:
                yield _private_key(file, file.stat().st_mtime_ns)
            except FileNotFoundError:
                continue
            except TypeError:  # what cryptography raises
                locked.append(file)
            except (OSError, ValueError, paramiko.SSHException) as error:
                self.troubles.append(f"{file}: {error}")
        for file in locked:
            terminal = self._keyring.terminal
            if terminal is None:
                self.troubles.append(f"{file} needs a passphrase, so ssh-add it")
            elif (key := self._keyring.unlocked(file, terminal)) is not None:
                yield key
            else:
                self.troubles.append(f"{file}: the passphrase was wrong")

    def _certificates(self) -> list[bytes]:
        found = []
        for file in (*self._hop.certificates, *(Path(f"{file}-cert.pub") for file in self._files)):
            try:
                _, text = file.read_bytes().split()[:2]
                found.append(base64.b64decode(text, validate=True))
            except FileNotFoundError:
                if file in self._hop.certificates:  # beside a key there need be none
                    self.troubles.append(f"CertificateFile {file} does not exist")
            except (OSError, ValueError) as error:
                self.troubles.append(f"{file}: {error}")
        return found


class _CertificateOfAgent(paramiko.AgentKey):
    """A certificate that the agent holds along with its key; agent and node know it by the whole of it."""

    def asbytes(self) -> bytes:
        return self.blob


def _of_agent(key: paramiko.AgentKey) -> paramiko.AgentKey:
    return _CertificateOfAgent(key.agent, key.blob) if key.name.endswith(CERTIFICATE) else key


def _certified(key: paramiko.PKey, certificate: bytes) -> paramiko.PKey:
    """The same key, to be offered with a certificate."""
    other = paramiko.AgentKey(key.agent, key.blob) if isinstance(key, paramiko.AgentKey) else copy.copy(key)
    other.load_certificate(paramiko.Message(certificate))
    return other


def _is_about(certificate: bytes, key: bytes) -> bool:
    """Whether a certificate is of this public key: behind its type and a nonce it has what the key has behind its type."""
    return _behind(certificate, 2).startswith(_behind(key, 1)) and key not in (b"", certificate)


def _behind(blob: bytes, fields: int) -> bytes:
    message = paramiko.Message(blob)
    for _ in range(fields):
        message.get_binary()
    return message.get_remainder()


@once
def _private_key(file: Path, _mtime_ns: int) -> paramiko.PKey:
    """Read it once for all nodes."""
    return _loaded(file, None)


def _loaded(file: Path, passphrase: bytes | None) -> paramiko.PKey:
    key = paramiko.PKey.from_path(file, passphrase)  # type: ignore[arg-type]  # bytes it must be, whatever is written there
    key.public_blob = None  # of a certificate beside it, which _certificates finds too
    return key


def _public_blob(file: Path) -> bytes | None:
    try:
        return base64.b64decode(Path(f"{file}.pub").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
