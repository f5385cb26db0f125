"""The transports, and which of them reaches a node. A new transport is a module here and a line below."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.transports.base import Transport
from orchestrator.transports.terminal import Terminal

if TYPE_CHECKING:
    from orchestrator.transports.ssh.route import SshSettings, Target


OPEN_FILES = 1 << 16


def way_to(
    kind: str, ssh: Mapping[str, Any] | SshSettings, terminal: Terminal | None = None
) -> Callable[[Target], Transport]:
    """What reaches a node: `local` or `ssh`, by the options of an inventory or of a plan. Fabric is imported here and now, and only when it is needed."""
    if kind == "local":
        from orchestrator.transports.local import LocalTransport  # noqa: PLC0415

        return lambda node: LocalTransport(node.name)
    from orchestrator.transports.ssh.route import PlannedSsh  # noqa: PLC0415
    from orchestrator.transports.ssh.transport import SshTransport  # noqa: PLC0415
    from orchestrator.transports.ssh.user_keys import Keyring  # noqa: PLC0415

    _allow_open_files()
    keyring, settings = Keyring(terminal or Terminal()), PlannedSsh(**ssh) if isinstance(ssh, Mapping) else ssh
    return lambda node: SshTransport(node, settings, keyring)


def _allow_open_files() -> None:
    """A connection is an open file: the usual 1,024 of a process are too few for as many nodes, and what may be had costs nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
