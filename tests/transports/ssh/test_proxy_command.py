"""The process of a ProxyCommand."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from orchestrator.transports.ssh.proxy_command import ProxyCommand

START = """
import os, sys
from orchestrator.transports.ssh.proxy_command import ProxyCommand
proxy = ProxyCommand("sh -c 'echo $$; sleep 1000'")
with proxy.connection as connection:
    print(connection.recv(99).decode())
    sys.stdout.flush()
    os._exit(0)
"""


def test_errors_of_the_proxy_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    proxy = ProxyCommand("sh -c 'echo Permission denied >&2'")
    with proxy.connection as connection:
        assert connection.recv(1) == b""
    proxy.end()
    assert capfd.readouterr().err == "Permission denied\n"


@pytest.mark.processes
def test_piped_errors_of_the_caller_end_before_the_proxy() -> None:
    done = subprocess.run([sys.executable, "-c", START], check=True, capture_output=True, timeout=30)
    os.killpg(int(done.stdout), 9)  # it still runs
