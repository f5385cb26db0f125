"""The cause of a rank's failure, from what is on the node."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from orchestrator.node.agent.failure import failure_of
from tests.grounds import components

if TYPE_CHECKING:
    from pathlib import Path

SHOW = """
import sys
from orchestrator.node.agent.failure import failure_of
print(failure_of(sys.argv[1], 0, None, [0]))
"""


def _on_small_disk(folder: Path, fill: str) -> str:
    argv = [components.program("unshare"), "--mount", "sh", "-ec"]
    argv += [f'mount -t tmpfs -o size=1m,nr_inodes=9 tmpfs "$1"; cd "$1"; {fill}; cd /; exec "$0" -c "$2" "$1"']
    done = subprocess.run([*argv, sys.executable, str(folder), SHOW], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_full_disk_is_named_with_its_size(tmp_path: Path) -> None:
    error = 'mkdir error; echo "{\\"message\\": \\"no progress\\"}" >error/0.json'
    fill = "head -c 2m /dev/zero >x 2>/dev/null || true"
    assert _on_small_disk(tmp_path, "true") == "(None, None)"
    assert _on_small_disk(tmp_path, f"{error}; {fill}") == (
        f"('no progress; the disk of {tmp_path} is full (0 of 0.00105 GB free)', None)"
    )
    inodes = "for i in 1 2 3 4 5 6 7 8 9; do touch $i || break; done 2>/dev/null"
    assert _on_small_disk(tmp_path, inodes) == f"('the disk of {tmp_path} has no inodes left', None)"


def test_failure_without_a_message_on_a_disk_with_space_has_none(tmp_path: Path) -> None:
    assert failure_of(str(tmp_path), 0, "SIGBUS", [0]) == (None, None)
