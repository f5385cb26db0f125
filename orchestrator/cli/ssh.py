"""`orch ssh`: become an ssh to a node of the inventory."""

from __future__ import annotations

import os
from typing import NoReturn

import click

from orchestrator.cli import completion, options
from orchestrator.errors import UsageError


@click.command()
@options.inventory
@options.to_host
@click.argument("node", shell_complete=completion.nodes_of_inventory)
def ssh(inventory: str | None, *, to_host: bool, node: str) -> NoReturn:
    """Log in to a node of the inventory. In its container if it has one, with its address, user, port, jump host and host key rule."""
    from orchestrator.usecases.execute import login_command

    argv = login_command(inventory, node, to_host=to_host)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  that is the purpose
    except FileNotFoundError as exc:
        raise UsageError(f"no program {argv[0]} on the PATH of this machine", hint="install it") from exc
