"""Processes on a node whose /proc shows a user no other user's (hidepid=1)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.grounds import components

SHOW = """
import os, subprocess
from orchestrator.node.system import processes
from orchestrator.node.run import ownership
foreign = subprocess.Popen(["sleep", "100"])
os.setgroups([]); os.setgid(12345); os.setuid(12345)
child = subprocess.Popen(["sleep", "100"])
while processes.stat_of(child.pid) is None:  # it is hidden, too, until its exec is complete
    pass
print([pid for pid in processes.descendants()] == [child.pid], [*ownership.user_processes()] == [child.pid])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount /proc")
def test_processes_that_proc_hides_are_passed_over() -> None:
    argv = [components.program("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    argv += ["sh", "-ec", 'mount -o remount,hidepid=1 /proc; exec "$@"', "sh", sys.executable, "-c", SHOW]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr) == ("True True\n", "")
