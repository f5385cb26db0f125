"""Command lines: the one that a login shell gets, and the one that a user can try."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from orchestrator.transports.ssh.route import Destination, SshSettings

SESSION_REFUSED = "logged in, but the server refuses to start programs (MaxSessions in its sshd_config?)"


def command_line(argv: Sequence[str]) -> str:
    """The string that ssh sends to the login shell, which expands a `~/` at its beginning and nothing else."""
    program, *arguments = argv
    home, path = ("~/", program[2:]) if program.startswith("~/") else ("", program)
    return " ".join([home + shlex.quote(path), shlex.join(arguments)]).strip()


def login_command(target: Destination, ssh: SshSettings, command: str = "true") -> str:
    """The command for the same login by ssh, in backquotes."""
    argv = [
        "ssh",
        *(["-F", str(Path(ssh.config).expanduser())] if ssh.config else []),
    ]  # ssh itself does not expand a ~
    argv += ["-J", ssh.proxy_jump] if ssh.proxy_jump else []
    argv += ["-p", str(target.port)] if target.port else []
    address = f"{target.user}@{target.address}" if target.user else target.address
    return f"`{shlex.join([*argv, address, command])}`"
