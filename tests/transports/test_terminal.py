"""Prompts of logins at the terminal of the process: allowed by default, and switched off."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.grounds.screen import Screen

pytestmark = pytest.mark.processes

PROGRAM = """
from orchestrator.transports.ssh.user_keys import Keyring
from orchestrator.transports.terminal import Terminal
print("by default:", Keyring(Terminal()).terminal is not None)
print("without prompts:", Keyring(Terminal(may_prompt=False)).terminal is not None)
"""


def test_a_login_prompts_at_a_terminal_unless_prompts_are_off(tmp_path: Path) -> None:
    with Screen([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=os.environ) as screen:
        assert screen.ended() == 0, screen.text
    assert screen.text.splitlines() == ["by default: True", "without prompts: False"]
