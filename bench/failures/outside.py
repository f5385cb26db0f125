"""
Failures whose cause is outside the program: limits of memory and time, /dev/shm, a host key, a slow rank.

Each function provokes its failure, follows the remedy, and returns the diagnosis and the state of the run after the remedy.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from bench.failures.provoked import Outcome, Provoked
from bench.workspace import installed
from tests.grounds.cli import Orch
from tests.grounds.inventories import write_inventory
from tests.grounds.memory_groups import MIB, memory_group
from tests.grounds.slurm import open_cluster
from tests.grounds.sshd import open_farm
from tests.until import until

_RANK_1 = (
    "import os, sys, time\nif os.environ['RANK'] == '0':\n    time.sleep(float(os.environ['WAIT_S']))\n    sys.exit()\n"
)
_USE_MEMORY = f"""{_RANK_1}
with open(os.environ["GROUP"] + "/cgroup.procs", "w") as processes:
    processes.write(str(os.getpid()))
used = bytearray({200 * MIB})
used[::4096] = b"1" * len(used[::4096])
"""
_MOUNT = 'mount -t tmpfs -o size=$SHM_SIZE tmpfs /dev/shm && exec "$0" "$@"'
_WITH_SHM = f"""{_RANK_1}
if len(sys.argv) == 1:  # start again where /dev/shm is mounted for this process alone
    os.execvp("unshare", ["unshare", "--mount", "sh", "-c", {_MOUNT!r}, sys.executable, __file__, "mounted"])
"""
_WRITE_SHM = f"""{_WITH_SHM}
import mmap
with open("/dev/shm/batch", "w+b") as file:
    file.truncate({8 * MIB})
    mmap.mmap(file.fileno(), 0)[::4096] = b"1" * {8 * MIB // 4096}
"""
_LOAD_BATCHES = f"""{_WITH_SHM}
import torch
from torch.utils.data import DataLoader
list(DataLoader([torch.ones({MIB})] * 4, num_workers=1))
"""

_STEPS = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(200):
    if os.environ["RANK"] == os.environ["SLOW_RANK"]:
        time.sleep(0.1)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def _out_of_memory(folder: Path) -> Outcome:
    """A memory cgroup of 64 MiB, in which the kernel kills rank 1; the remedy is a higher limit."""
    with memory_group() as group:
        group.restrict(64 * MIB)
        env = {"GROUP": str(group.folder)}
        found = _local(folder, _USE_MEMORY, {**env, "WAIT_S": "600"})["failure"]
        group.restrict(512 * MIB)
        return found, _local(folder, _USE_MEMORY, {**env, "WAIT_S": "0"})["state"]


def _full_shm_written(folder: Path) -> Outcome:
    """A /dev/shm of 1 MiB, in which rank 1 writes 8 MiB through a mapping; the remedy is a larger one."""
    return _full_shm(folder, _WRITE_SHM)


def _full_shm_of_loader(folder: Path) -> Outcome:
    """A /dev/shm of 1 MiB, through which a worker of a DataLoader passes batches of 4 MiB; the remedy is a larger one."""
    return _full_shm(folder, _LOAD_BATCHES)


def _time_limit(folder: Path) -> Outcome:
    """A Slurm job whose time limit is sooner than its end; the remedy is more time."""
    installed("slurmctld")
    with open_cluster() as cluster:
        cluster.inventory(folder)
        orch = Orch(folder, env=dict(cluster.env))
        program = ("--", "sh", "-c", "echo started; sleep 30")
        run = orch("submit", "--detach", "-j", "1x1", *program).stdout.strip()
        until(lambda: "started" in orch.printed(run), deadline_s=90, awaited="the rank")
        limit = ["scontrol", "update", f"JobId={orch.slurm_job(run)}", "EndTime=now+2"]
        subprocess.run(limit, env=cluster.env, check=True)
        found = cluster.wait_for(orch, run, "FAILED", deadline_s=180)["failure"]
        orch("submit", "-t", "00:02:00", "-j", "1x1", *program, timeout_s=180)
        return found, orch.status()["state"]


def _changed_host_key(folder: Path) -> Outcome:
    """Nodes with another host key than the known one; the remedy is the key that their admin confirms."""
    with open_farm() as farm:
        farm.inventory(folder)
        orch = Orch(folder)
        launch = ("ssh-launch", "--no-check", "--", "true")
        with farm.restart_with_new_host_key():
            orch(*launch, code=None)
            found = json.loads(orch("diagnose", "--json").stdout)
        orch(*launch)  # the nodes have the key of known_hosts again
        return found, orch.status()["state"]


def _slow_rank(folder: Path) -> Outcome:
    """A rank that sleeps in each step: nothing fails, and it is named, and the run continues; the remedy is not to sleep."""
    status = _local(folder, _STEPS, {"SLOW_RANK": "1"})
    [event, *_] = [*_events(folder, status["id"], "slow-ranks"), ""]
    ranks = [int(number) for number in re.findall(r"rank (\d+) is slow", event)]
    found = {"signature": "slow-rank" if ranks else None, "kind": "slow", "ranks": ranks, "confidence": None}
    status = _local(folder, _STEPS, {"SLOW_RANK": "none"})
    return found, status["state"] + ", slow again" * bool(_events(folder, status["id"], "slow-ranks"))


def _events(folder: Path, run: str, name: str) -> list[str]:
    """The texts of the run's events of that name."""
    lines = (Orch(folder).home / "runs" / run / "events.jsonl").read_text("utf-8").splitlines()
    return [event["text"] for event in map(json.loads, lines) if event["event"] == name]


def _full_shm(folder: Path, program: str) -> Outcome:
    found = _local(folder, program, {"SHM_SIZE": "1m", "WAIT_S": "600"})["failure"]
    return found, _local(folder, program, {"SHM_SIZE": "64m", "WAIT_S": "0"})["state"]


def _local(folder: Path, program: str, env: dict[str, str]) -> dict[str, Any]:
    """Launch the program on two nodes of this machine, and return the status at its end."""
    base = {
        "name": "f",
        "accelerator": "cpu",
        "devices": 1,
        "transport": "local",
        "defaults": {"workdir": str(folder / "work")},
        "nodes": [{"name": "n[0-1]"}],
    }
    write_inventory(folder / "inventory.yaml", base, {"env": env})
    (folder / "train.py").write_text(program, "utf-8")
    orch = Orch(folder)
    orch("ssh-launch", "--no-check", "--", "train.py", code=None)
    return orch.status()


OUTSIDE = (
    Provoked("OOM killer", "", ["cgroup-oom"], "memory", provoke=_out_of_memory),
    Provoked("SIGBUS by a full /dev/shm", "", ["bus-error"], "storage", provoke=_full_shm_written),
    Provoked("DataLoader with a full /dev/shm", "", ["shm-full", "worker-bus-error"], "storage", provoke=_full_shm_of_loader),
    Provoked("time limit of Slurm", "", ["slurm-time-limit"], "preemption", None, provoke=_time_limit),
    Provoked("slow rank", "", ["slow-rank"], "slow", provoke=_slow_rank),
    Provoked("changed host key", "", ["ssh-key-changed"], "config", None, provoke=_changed_host_key),
)  # fmt: skip
