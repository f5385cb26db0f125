"""The kernel's OOM killer in a real run: a killed rank is the cause, and a killed process of another cgroup is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.components import unavailable
from tests.grounds.inventories import write_inventory
from tests.grounds.memory_groups import MIB, MemoryGroup, memory_group
from tests.until import until

pytestmark = pytest.mark.processes
FILL = f"used = bytearray({256 * MIB})\nused[::4096] = b'1' * len(used[::4096])\n"
PROGRAM = f"import os, time\nprint('in step 1', flush=True)\nif os.environ['RANK'] == os.environ['FULL']:\n    {FILL.replace(chr(10), chr(10) + '    ')}\ntime.sleep(1000)\n"


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    if os.getuid() != 0:
        unavailable("memory cgroups need root")
    try:
        with memory_group() as made:
            made.restrict(128 * MIB)
            yield made
    except OSError as error:
        unavailable(f"no memory cgroup can be made: {error}")


def _orch(folder: Path, full: str, setup: list[str]) -> Orch:
    """orch beside an inventory of two nodes of this machine, and a program whose rank `full` uses 256 MiB."""
    base = {"name": "here", "accelerator": "cpu", "devices": 1, "transport": "local", "env": {"FULL": full}}
    nodes = [{"name": "n[0-1]"}]
    defaults = {"workdir": str(folder / ".work"), "python": sys.executable}
    write_inventory(folder / "inventory.yaml", {**base, "defaults": defaults, "nodes": nodes, "setup": setup}, {})
    (folder / "train.py").write_text(PROGRAM)
    return Orch(folder)


def test_rank_that_the_kernel_kills_for_lack_of_memory_is_the_cause(group: MemoryGroup, tmp_path: Path) -> None:
    orch = _orch(tmp_path, "1", [group.enter])
    orch("ssh-launch", "--no-check", "--", "train.py", code=1)
    failure = orch.status()["failure"]
    assert (failure["kind"], failure["retry"], failure["ranks"]) == ("memory", "never", [1])
    assert (failure["signature"] in {"cgroup-oom", "run-oom-kills"}, failure["confidence"]) == (True, "high")
    [end] = [
        event
        for event in orch.events(orch.node_folder(orch.status()["id"], "n1"))
        if event["event"] == "agent-finished"
    ]
    assert end["oom_kills"] == 1


@pytest.mark.extended
def test_process_of_another_cgroup_that_the_kernel_kills_is_not_the_cause(group: MemoryGroup, tmp_path: Path) -> None:
    orch = _orch(tmp_path, "none", [])
    run = orch("ssh-launch", "--no-check", "--detach", "--", "train.py").stdout.strip()
    until(lambda: orch.printed(run).count("in step 1") == 2, awaited="both ranks")
    foreign = subprocess.run(["sh", "-c", f'{group.enter}; exec "$@"', "sh", sys.executable, "-c", FILL], check=False)
    assert foreign.returncode == -signal.SIGKILL
    os.kill(orch.rank_pid(run, "n1", 1), signal.SIGKILL)
    until(lambda: orch.recorded(run) == "FAILED", awaited="the end")
    found = json.loads(orch("diagnose", "--json").stdout)
    assert (found["signature"], found["ranks"], found["confidence"]) == ("killed", [1], "low")
    assert [line["signature"] for line in found["observations"]] == ["foreign-oom-kills"]
