"""`orch ssh`: become an ssh to a node of the inventory."""

from __future__ import annotations

import os
from typing import NoReturn

from orchestrator.actions.execute import login_command
from orchestrator.errors import UsageError


def ssh(inventory: str | None, node: str) -> NoReturn:
    """
    Replace this process by the ssh that logs in to the node.

    Raises:
        UsageError: there is no such node, or no ssh on this machine.
    """
    argv = login_command(inventory, node)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  that is the purpose
    except FileNotFoundError as exc:
        raise UsageError("no program ssh on the PATH of this machine", hint="install the OpenSSH client") from exc
