"""Connect to all nodes of an inventory, push, start a sleeping rank on each, stop them; print times and processor times as JSON."""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

from orchestrator.launchers import launcher_for
from orchestrator.node.run.ownership import LOADER, proc_strings, rank_owner
from orchestrator.plan.make import make_plan
from orchestrator.plan.resolve import resolve
from orchestrator.run import new_run_id
from orchestrator.usecases.inventory import load_inventory
from orchestrator.usecases.launch.request import make_request
from orchestrator.usecases.launch_arguments import LaunchArguments

RANKS_S = 60.0


def on_nodes(run: str) -> tuple[list[int], list[int]]:
    """The ranks of the run, and the endpoints, guards and agents on the nodes, which are all on this machine."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    ranks = [pid for pid in pids if (rank_owner(pid) or [""])[0] == run]
    return ranks, [pid for pid in pids if LOADER in proc_strings(pid, "cmdline") and pid not in ranks]


def processor_s(pids: list[int]) -> float:
    """The processor time of living processes of one thread each, to the nanosecond."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


path = sys.argv[1]
program = ("sleep", "1000")
inventory = load_inventory(path, None)
request, bundle = make_request(LaunchArguments("ssh", path, None, None, None, (), program))
run_id = new_run_id(inventory.name, datetime.now(timezone.utc), secrets.token_hex(2))
plan = make_plan(inventory, request, run_id=run_id, bundle=bundle.digest)
launcher = launcher_for(plan)
begun, begun_cpu = time.monotonic(), time.process_time()
plan = resolve(plan, launcher.connect(plan))
plan = resolve(plan, launcher.push(plan, bundle))
launcher.start(plan, bundle)
started, started_cpu = time.monotonic(), time.process_time()
count = len(plan.nodes)
ranks, programs = on_nodes(run_id)
while len(ranks) < count:
    assert time.monotonic() < started + RANKS_S, f"{len(ranks)} of {count} ranks run"
    time.sleep(0.02)
    ranks, programs = on_nodes(run_id)
nodes_s = processor_s(ranks + programs)
threads, files = threading.active_count(), len([*Path("/proc/self/fd").iterdir()])
began_stop = time.monotonic()
left = launcher.stop(None, grace_s=5.0)
stopped = time.monotonic()
launcher.close()
assert not left, left
figures = {
    "start": started - begun,
    "stop": stopped - began_stop,
    "threads": threads,
    "files": files,
    "controller": (started_cpu - begun_cpu) / count,
    "node": nodes_s / count,
}
sys.stdout.write(f"figures {json.dumps(figures)}\n")
