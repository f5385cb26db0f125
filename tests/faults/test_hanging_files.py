"""Ranks that no signal ends, as a file system does not answer them: what is left is named, and ends once that answers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.system.machine import stat_fields, state_of
from tests.grounds.cli import Orch
from tests.grounds.components import unavailable
from tests.grounds.fuse import OneFile
from tests.grounds.inventories import write_inventory
from tests.grounds.mounts import in_own_mounts
from tests.until import until

pytestmark = pytest.mark.processes
# Rank 1 waits for the file system itself, a thread of rank 2 does, and rank 0 does not.
PROGRAM = """
import os, threading, time

def read():
    while True:
        with open(os.environ["DATA"] + "/data", "rb", buffering=0) as file:
            file.read(4096)
        time.sleep(0.01)

print("up", flush=True)
rank = os.environ["RANK"]
if rank == "1":
    read()
if rank == "2":
    threading.Thread(target=read, daemon=True).start()
time.sleep(1000)
"""
IN_KERNEL = "which was killed but waits in the kernel (state D), for a disk or a driver: it ends once that answers"


def _orch(folder: Path, data: Path) -> Orch:
    base = {"name": "here", "accelerator": "cpu", "devices": 1, "transport": "local", "env": {"DATA": str(data)}}
    defaults = {"workdir": str(folder / ".work"), "python": sys.executable}
    write_inventory(folder / "inventory.yaml", {**base, "defaults": defaults, "nodes": [{"name": "n[0-2]"}]}, {})
    (folder / "train.py").write_text(PROGRAM)
    return Orch(folder)


def _state(pid: int) -> str:
    fields = stat_fields(pid)
    return state_of(pid, fields) if fields else "X"


def _stop_while_files_hang(orch: Orch, served: OneFile) -> tuple[dict[int, int], subprocess.CompletedProcess[str]]:
    """Stop a run two of whose ranks wait for the file system, until its end is recorded; returns the pids of these ranks and the output."""
    run = orch("ssh-launch", "--no-check", "--detach", "--", "train.py").stdout.strip()
    until(lambda: orch.printed(run).count("up\n") == 3, awaited="all ranks")
    served.hold()
    until(lambda: served.held == 2, awaited="two reads without an answer")
    pids = {rank: orch.rank_pid(run, f"n{rank}", rank) for rank in (1, 2)}
    stopped = orch("stop", run, code=4)
    assert [_state(pid) for pid in pids.values()] == ["D", "D"]
    until(lambda: orch.recorded(run) == "STOPPED", awaited="the record of the end")
    return pids, stopped


@pytest.mark.extended
def test_ranks_that_wait_in_the_kernel_are_named_by_a_stop_and_end_with_the_wait(tmp_path: Path) -> None:
    if os.getuid() != 0 or not Path("/dev/fuse").exists():
        unavailable("mounting a FUSE file system needs root and /dev/fuse")

    def act() -> None:
        data = tmp_path / "data"
        data.mkdir()
        served = OneFile(data)
        try:
            orch = _orch(tmp_path, data)
            pids, stopped = _stop_while_files_hang(orch, served)
            for rank, pid in pids.items():
                assert f"n{rank}: still running: pid {pid}, {IN_KERNEL}" in stopped.stderr
            assert "n0" not in stopped.stderr
            status = orch.status()
            assert [
                f"left on n{rank} at the end: pid {pid}, {IN_KERNEL}" in status["message"] for rank, pid in pids.items()
            ] == [True, True]
            served.refuse(errno.EIO)
            until(lambda: [_state(pid) for pid in pids.values()] == ["X", "X"], awaited="the ranks to end")
            ends = ["n1: stopped, nothing is left running", "n2: stopped, nothing is left running"]
            until(lambda: all(end in orch.printed(status["id"]) for end in ends), awaited="the agents to record that")
            orch("stop", status["id"])
            assert orch.processes_of(status["id"]) == []
        finally:
            served.close()

    in_own_mounts(act)
