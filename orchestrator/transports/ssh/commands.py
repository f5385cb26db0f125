"""Command lines: the one that a login shell gets, and those of the program ssh for a user's login."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from orchestrator.transports.ssh.route import Destination, SshSettings

SESSION_REFUSED = "logged in, but the server refuses to start programs (MaxSessions in its sshd_config?)"

FAST_CIPHERS = (
    "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr"
)
"""The ciphers that OpenSSH enables by default, those first that a processor has instructions for."""


def command_line(argv: Sequence[str]) -> str:
    """The string that ssh sends to the login shell, which expands a `~/` at its beginning and nothing else."""
    program, *arguments = argv
    home, path = ("~/", program[2:]) if program.startswith("~/") else ("", program)
    return " ".join([home + shlex.quote(path), shlex.join(arguments)]).strip()


def login_command(target: Destination, ssh: SshSettings, command: str = "true") -> str:
    """The command for the same login by ssh, in backquotes."""
    address = f"{target.user}@{target.address}" if target.user else target.address
    return f"`{shlex.join([*_ssh_argv(target, ssh), address, command])}`"


def login_argv(node: Destination, ssh: SshSettings) -> list[str]:
    """
    The arguments of an ssh that logs a person in as orch does: to the same address, through the same jump host, with the same host keys.

    An option on the command line overrides ssh_config, which ssh reads for everything else.
    """
    argv = [*_ssh_argv(node, ssh), *(["-l", node.user] if node.user else [])]
    checking = "accept-new" if ssh.host_keys == "accept-new" else "yes"
    argv += ["-o", f"StrictHostKeyChecking={checking}", "-o", f"ConnectTimeout={max(1, round(ssh.connect_timeout_s))}"]
    return [*argv, "--", node.address]


def _ssh_argv(target: Destination, ssh: SshSettings) -> list[str]:
    argv = ["ssh", *(["-F", str(Path(ssh.config).expanduser())] if ssh.config else [])]  # ssh does not expand a ~
    argv += ["-J", ssh.proxy_jump] if ssh.proxy_jump else []
    return argv + (["-p", str(target.port)] if target.port else [])
