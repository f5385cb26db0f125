"""Logins by the key of the client's host, which a setuid program of OpenSSH signs with: ssh finds a made-up /etc/ssh."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.grounds.components import program, unavailable
from tests.grounds.ssh_files import known_hosts_line
from tests.grounds.sshd import Farm, make_key

SERVER = {
    "AuthenticationMethods": "any",
    "AuthorizedKeysFile": "none",
    "HostbasedAuthentication": "yes",
    "HostbasedUsesNameFromPacketOnly": "yes",
    "IgnoreRhosts": "no",
}
"""The settings of sshd for hostbased logins alone."""


@contextlib.contextmanager
def open_hostbased(farm: Farm, folder: Path) -> Iterator[Path]:
    """Let the farm trust this machine; yield a folder with an `ssh` that has its own host key, to be first on PATH."""
    if (
        not farm.is_own_account
        or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode
    ):
        unavailable("a mount namespace and a separate account for the nodes need root")
    host_key = make_key(_folder(folder / "etc") / "ssh_host_ed25519_key")
    (folder / "etc/ssh_config").write_text("EnableSSHKeysign yes\n", encoding="utf-8")
    script = f'mount --bind {folder}/etc /etc/ssh && exec {program("ssh")} "$@"'
    ssh = _folder(folder / "bin") / "ssh"
    ssh.write_text(f"#!/bin/sh\nexec unshare -m sh -c '{script}' ssh \"$@\"\n", encoding="utf-8")
    ssh.chmod(0o755)
    trust = {
        ".shosts": "localhost root\n127.0.0.1 root\n",
        ".ssh/known_hosts": known_hosts_line("localhost,127.0.0.1", host_key),
    }
    for name, text in trust.items():
        _folder((farm.home / name).parent)
        (farm.home / name).write_text(text, encoding="utf-8")
        shutil.chown(farm.home / name, farm.user)
    try:
        with farm.restarted(**SERVER):
            yield ssh.parent
    finally:
        for name in trust:
            (farm.home / name).unlink()


def _folder(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path
