"""What the ssh tests share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grounds.components import program
from tests.until import until


@pytest.fixture
def ssh_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty ssh-agent of this test's own, in SSH_AUTH_SOCK."""
    socket = tmp_path / "agent"
    with subprocess.Popen([program("ssh-agent"), "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as agent:
        until(socket.is_socket, what="ssh-agent")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        yield socket
        agent.terminate()
