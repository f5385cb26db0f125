"""The account that the nodes' side of an sshd runs as."""

from __future__ import annotations

import os
import pwd
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.grounds.components import program
from tests.until import until

_PRIVILEGE_SEPARATION = Path("/run/sshd")


@dataclass(frozen=True, slots=True)
class Account:
    """The account that the nodes' side runs as."""

    user: str
    home: Path
    is_own: bool
    """Made for this farm; False: the account that runs the tests, which only gets another home."""


def own_account(folder: Path) -> Account:
    """Make an account; the keeper of the ground removes it."""
    # root's sshd insists on this empty folder, which the service makes when it is started the ordinary way
    _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    user, home = f"orch-test-{os.getpid()}-{secrets.token_hex(2)}", folder / "home"
    # password *: no password matches. The default ! would lock the account, and sshd refuses keys of a locked account too
    options = ["--system", "--user-group", "--no-create-home", "--password", "*", "--shell", "/bin/bash"]

    def added() -> bool:
        # fails while another worker holds the lock of the password file
        subprocess.run([program("useradd"), *options, "--home-dir", str(home), user], check=False, capture_output=True)
        return user in {entry.pw_name for entry in pwd.getpwall()}

    until(added, awaited=f"useradd {user}")
    home.mkdir(mode=0o700)
    entry = pwd.getpwnam(user)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    return Account(user=user, home=home, is_own=True)


def set_password(account: Account, password: str | None) -> None:
    """Change the password of an account that was made here; None: no password matches."""
    assert account.is_own, "only of an account that the tests have made"
    encrypted = [] if password else ["--encrypted"]

    def changed() -> bool:
        # on standard input, where nobody else reads it; fails while another worker holds the lock
        line = f"{account.user}:{password or '*'}\n"
        argv = [program("chpasswd"), *encrypted]
        return subprocess.run(argv, input=line, text=True, check=False, capture_output=True).returncode == 0

    until(changed, awaited=f"chpasswd {account.user}")


def current_account(folder: Path) -> Account:
    """The account that runs the tests, with another home."""
    if is_root():
        _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    home = folder / "home"
    home.mkdir(mode=0o700)
    return Account(user=current_user(), home=home, is_own=False)


def is_root() -> bool:
    return os.geteuid() == 0


def current_user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name
