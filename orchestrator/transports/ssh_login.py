"""
Who is at the other end and who we are: host keys are verified, then the user's keys offered. Imported by ssh.py alone.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import paramiko

from orchestrator.errors import NodeError
from orchestrator.transports.base import Unreachable
from orchestrator.transports.known_hosts import KnownKey, host_name, known_keys, pin
from orchestrator.transports.ssh_route import Hop

AUTH_S = 30.0  # a busy node, or one that looks its users up elsewhere
DEFAULT_IDENTITIES = tuple(Path("~/.ssh", name) for name in ("id_rsa", "id_ecdsa", "id_ed25519"))


class HostKeys(paramiko.MissingHostKeyPolicy):
    """
    Accepts a host key that known_hosts has, pins a new one where that is asked for, and refuses all others.

    The client itself knows no keys, so that paramiko asks this policy about every one.
    """

    def __init__(self, node: str, hop: Hop, *, accept_new: bool) -> None:
        self._node = node
        self._hop = hop
        self._accept_new = accept_new
        self._name = hop.key_name or host_name(hop.host, hop.port)
        self._known = known_keys([*hop.user_known_hosts, *hop.global_known_hosts], self._name)

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """
        Return if the key may be trusted.

        Raises:
            NodeError: it may not.
        """
        known = self._known
        if not known and self._accept_new and self._hop.user_known_hosts:
            known = pin(self._hop.user_known_hosts[0], self._name, key.get_name(), key.asbytes())
        same = [entry for entry in known if entry.blob == key.asbytes()]
        if any(entry.revoked for entry in same):
            raise NodeError(self._node, f"the host key of {self._name} is revoked ({_where(same)})")
        if same:
            return
        found = f"{key.get_name()} {key.fingerprint}"
        if known:
            raise NodeError(
                self._node,
                f"the host key of {self._name} has changed: it is {found}, but {_where(known)} says otherwise",
                hint=f"somebody may be listening in; if the node was reinstalled, remove {_where(known)}",
            )
        raise NodeError(
            self._node,
            f"the host key of {self._name} is unknown: {found}",
            hint=f"compare it and log in once with `ssh {self._hop.address} true`, or set ssh.host_keys: accept-new",
        )

    def transport(self, sock: paramiko.transport._SocketLike, **options: object) -> paramiko.Transport:
        """A transport that asks for a kind of key that is known, where the server has several."""
        transport = _Transport(sock, **options)  # type: ignore[arg-type]  # passed on as they are
        security = transport.get_security_options()
        known = {entry.algorithm for entry in self._known}
        if "ssh-rsa" in known:
            known |= {"rsa-sha2-512", "rsa-sha2-256"}
        security.key_types = sorted(security.key_types, key=lambda kind: kind not in known)
        return transport


def _where(keys: Sequence[KnownKey]) -> str:
    return ", ".join(f"{key.file} line {key.line}" for key in keys)


class _Transport(paramiko.Transport):
    """Ends without a word when the jump host that it goes through is gone first."""

    def run(self) -> None:
        """Paramiko closes its socket at the end; a channel of a lost connection cannot say farewell and raises."""
        with contextlib.suppress(EOFError):
            super().run()


class UserKeys:
    """What paramiko calls an authentication strategy: offers keys in ssh's order: of the agent those that are configured, then its others, then files."""

    def __init__(self, node: str, hop: Hop) -> None:
        self._node = node
        self._hop = hop
        self._troubles: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """
        Log in.

        Raises:
            NodeError: no key was accepted.
        """
        begun = time.monotonic()
        where = f"{self._hop.user}@{self._hop.host} port {self._hop.port}"
        offered = 0
        for key in self._keys():
            try:
                if not transport.auth_publickey(self._hop.user, key):
                    return
                self._troubles.append("a key was accepted, but the node wants another proof besides")
            except paramiko.BadAuthenticationType as error:
                self._troubles.append(f"the node wants {', '.join(error.allowed_types)}")
                break
            except paramiko.AuthenticationException as error:
                if time.monotonic() - begun > AUTH_S:
                    raise Unreachable(self._node, f"{where}: no answer to the login for {AUTH_S:g} s") from error
                if not transport.is_active():
                    break
            offered += 1
        if not transport.is_active() and not offered:
            raise EOFError  # hung up without looking at a key
        tried = f"{offered} refused" if offered else "there is none"
        raise NodeError(
            self._node,
            f"{where}: no key was accepted ({'; '.join([tried, *self._troubles])})",
            hint=f"ssh {self._hop.address} true",
        )

    def _keys(self) -> Iterator[paramiko.PKey]:
        files = [file.expanduser() for file in self._hop.identities or DEFAULT_IDENTITIES]
        configured = {blob for file in files if (blob := _public_blob(file))}
        offered = set()
        if self._hop.agent:
            of_agent = paramiko.Agent().get_keys()
            first = [key for key in of_agent if key.asbytes() in configured]
            others = [] if self._hop.identities_only else [key for key in of_agent if key.asbytes() not in configured]
            for agent_key in [*first, *others]:
                offered.add(agent_key.asbytes())
                yield agent_key
        for file in files:
            if _public_blob(file) in offered:
                continue
            key = self._load(file)
            if key is not None and key.asbytes() not in offered:
                yield key

    def _load(self, file: Path) -> paramiko.PKey | None:
        try:
            return _private_key(file, file.stat().st_mtime_ns)
        except FileNotFoundError:
            return None
        except TypeError:  # what cryptography raises
            self._troubles.append(f"{file} needs a passphrase, so ssh-add it")
        except (OSError, ValueError, paramiko.SSHException) as error:
            self._troubles.append(f"{file}: {error}")
        return None


@functools.lru_cache(maxsize=16)
def _private_key(file: Path, _mtime_ns: int) -> paramiko.PKey:
    """Read once for a thousand nodes."""
    return paramiko.PKey.from_path(file)


def _public_blob(file: Path) -> bytes | None:
    try:
        return base64.b64decode(Path(f"{file}.pub").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
