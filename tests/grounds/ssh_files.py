"""The files that a ground's sshd and its clients read: settings and known keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def authorize(key: Path, path: Path) -> Path:
    """Write an authorized_keys file that accepts `key`."""
    path.write_bytes(key.with_suffix(".pub").read_bytes())
    path.chmod(0o644)  # sshd reads it as the account
    return path


def known_hosts_line(names: str, host_key: Path) -> str:
    """One line of known_hosts."""
    algorithm, key = host_key.with_suffix(".pub").read_text(encoding="utf-8").split()[:2]
    return f"{names} {algorithm} {key}\n"


def server_settings(*, host_key: Path, authorized_keys: Path) -> dict[str, str]:
    """The settings of every sshd of the grounds; the caller adds ListenAddress and AllowUsers."""
    return {
        "HostKey": str(host_key),
        "PidFile": "none",
        "AuthorizedKeysFile": str(authorized_keys),
        "AuthenticationMethods": "publickey",
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",  # /tmp is writable by all
        "UsePAM": "no",
        "UseDNS": "no",
        "PrintMotd": "no",
        "MaxStartups": "1024",
        "MaxSessions": "64",
        "Subsystem": "sftp /usr/lib/openssh/sftp-server",
    }


def client_settings(*, user: str, port: int, key: Path, known_hosts: Path) -> dict[str, str]:
    """The settings of every client of the grounds: this key alone, strict host keys, no prompts."""
    return {
        "User": user,
        "Port": str(port),
        "IdentityFile": str(key),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": os.devnull,
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
    }


def write_server_config(path: Path, settings: Mapping[str, str]) -> Path:
    """Write an sshd_config."""
    path.write_text("".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8")
    return path


def write_client_config(
    path: Path, aliases: Mapping[str, str], *, pattern: str, settings: Mapping[str, str], winning: Mapping[str, str]
) -> Path:
    """Write an ssh_config: alias -> address, and for `pattern` the `settings`, overridden by `winning`."""
    lines = []
    for alias, address in aliases.items():
        lines += [f"Host {alias}", f"  HostName {address}"]
    # ssh takes the first value of a keyword; the order of keywords does not matter
    lines += [f"Host {pattern}", *(f"  {key} {value}" for key, value in {**winning, **settings, **winning}.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
