"""The transports, and which of them reaches a node. A new transport is a module here and a line below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.transports.base import Transport

if TYPE_CHECKING:
    from orchestrator.inventory import SshOptions
    from orchestrator.transports.ssh_route import Target


def transport_to(node: Target, kind: str, ssh: SshOptions) -> Transport:
    """The way to a node: `local` or `ssh`. Fabric is imported only when it is needed."""
    if kind == "local":
        from orchestrator.transports.local import LocalTransport  # noqa: PLC0415

        return LocalTransport(node.name)
    from orchestrator.transports.ssh import SshTransport  # noqa: PLC0415

    return SshTransport(node, ssh)
