"""The command line of the program ssh for a person's login to a node."""

from __future__ import annotations

from pathlib import Path

from orchestrator.transports.ssh.route import Destination, SshSettings


def login_argv(node: Destination, ssh: SshSettings) -> list[str]:
    """
    The arguments of an ssh that logs in as orch does: to the same address, through the same jump host, with the same host keys.

    An option on the command line overrides ssh_config, which ssh reads for everything else.
    """
    argv = ["ssh", *(["-F", str(Path(ssh.config).expanduser())] if ssh.config else [])]
    argv += ["-J", ssh.proxy_jump] if ssh.proxy_jump else []
    argv += ["-p", str(node.port)] if node.port else []
    argv += ["-l", node.user] if node.user else []
    checking = "accept-new" if ssh.host_keys == "accept-new" else "yes"
    argv += ["-o", f"StrictHostKeyChecking={checking}", "-o", f"ConnectTimeout={max(1, round(ssh.connect_timeout_s))}"]
    return [*argv, "--", node.address]
