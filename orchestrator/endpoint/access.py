"""
Access to nodes: the choice of the transport, its settings, and the terminal for a login's prompts.

The rest of orch imports these from here: only endpoint/ imports transports/. A new transport is a line of `transport_factory`.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from orchestrator.progress import OnProgress
from orchestrator.transports.base import Transport
from orchestrator.transports.ssh.interactive import login_argv
from orchestrator.transports.ssh.route import Destination, PlannedSsh, SshSettings
from orchestrator.transports.terminal import Terminal

__all__ = [
    "Destination",
    "PlannedSsh",
    "SshSettings",
    "Terminal",
    "TransportFactory",
    "between_prompts",
    "login_argv",
    "transport_factory",
]

OPEN_FILES = 1 << 16
MACOS_OPEN_FILES = 10240  # OPEN_MAX in <sys/syslimits.h> there

TransportFactory: TypeAlias = Callable[[Destination], Transport]


def transport_factory(
    kind: str, ssh: Mapping[str, Any] | SshSettings, terminal: Terminal | None = None
) -> TransportFactory:
    """
    Make the function that makes a node's transport; at most `fanout` of them log in at the same time.

    Only ssh imports Fabric, which is slow.

    Args:
        kind: local or ssh.
        ssh: the options of an inventory, or of a plan; unused if `kind` is local.
        terminal: for a login's prompts; by default the terminal of this process.
    """
    if kind == "local":
        from orchestrator.transports.local import LocalTransport  # noqa: PLC0415

        return lambda node: LocalTransport(node.name)
    from orchestrator.transports.ssh.chosen import ChosenTransport  # noqa: PLC0415
    from orchestrator.transports.ssh.user_keys import Keyring  # noqa: PLC0415

    _raise_file_limit()
    keyring, settings = Keyring(terminal or Terminal()), PlannedSsh.of(ssh) if isinstance(ssh, Mapping) else ssh
    login_slots = threading.BoundedSemaphore(settings.fanout)
    return lambda node: ChosenTransport(node, settings, keyring, login_slots)


def between_prompts(on_progress: OnProgress) -> OnProgress:
    """Report progress only while no login prompts: its line would be written into the prompt."""
    terminal = Terminal()
    return lambda progress: terminal.unless_prompting(lambda: on_progress(progress))


def _raise_file_limit() -> None:
    """Raise the soft limit of open files: each connection needs one, and 1,024 nodes need more than the default 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    for limit in (MACOS_OPEN_FILES, wanted):
        if soft != resource.RLIM_INFINITY and soft < limit <= wanted:
            with contextlib.suppress(OSError, ValueError):  # macOS allows less than its hard limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
