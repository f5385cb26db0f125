"""Both clients of ssh, for tests that hold for either."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from orchestrator.inventory.model import Node, SshOptions
from orchestrator.transports.base import Transport
from orchestrator.transports.ssh.openssh import OpensshTransport
from orchestrator.transports.ssh.transport import SshTransport, route_to

Client: TypeAlias = Callable[[Node, SshOptions], Transport]


def by_program(node: Node, options: SshOptions) -> OpensshTransport:
    """A transport over the program ssh."""
    return OpensshTransport(node, options, route_to(node, options))


BOTH_CLIENTS = pytest.mark.parametrize("client", [SshTransport, by_program])
