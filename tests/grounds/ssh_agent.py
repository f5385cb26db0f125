"""A real ssh-agent."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.grounds.components import program
from tests.until import until


@contextlib.contextmanager
def open_agent(socket: Path) -> Iterator[None]:
    """Run an empty ssh-agent on this socket; clients need SSH_AUTH_SOCK."""
    with subprocess.Popen([program("ssh-agent"), "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as agent:
        until(socket.is_socket, awaited="ssh-agent")
        yield
        agent.terminate()
