"""The time from the death of a rank to the next new step of the shared trainer, with ranks that are forked and with ranks that import torch."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace
from orchestrator.node.run.run_folder import STANDBY_RECORD
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

NODES, VICTIM, WAIT_S = 3, 1, 180.0
NEW_STEP, RUNNING = "a step beyond the last one", "ranks of the next attempt started"
WARM, COLD = "forked from a waiting process", "started by exec (restart.warm: false)"
WORDS = ("steps=1000000", "save_steps=5", "model.layers=1", "model.width=32", "model.heads=1")

DESCRIPTION = f"""\
The shared trainer on {NODES} loopback nodes over ssh, one rank each, a tiny model. Rank {VICTIM} gets SIGKILL, and the run restarts from its newest
checkpoint, after a check of the nodes. With waiting processes, the kill follows once all of them have imported torch."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    """Kill one rank of a run that is restarted."""
    with open_farm() as farm:
        contestants = [Contestant(name, _restarted(workspace, farm, warm=name == WARM)) for name in (WARM, COLD)]
        series = run_rounds(contestants, repetitions=repetitions)
    targets = (Target(WARM, NEW_STEP, 2.0),)
    return Measure("Death of a rank to the next step", DESCRIPTION, COLD, (NEW_STEP, RUNNING), targets, series)


def _restarted(workspace: Workspace, farm: Farm, *, warm: bool) -> Callable[[], Mapping[str, float]]:
    folder = workspace.folder / ("warm" if warm else "cold")
    folder.mkdir()
    farm.inventory(folder, nodes=NODES, env={"OMP_NUM_THREADS": "1"}, restart={"max_retries": 1, "warm": warm})
    orch = Orch(folder)

    def run() -> Mapping[str, float]:
        run_id = orch("ssh-launch", "--detach", *WORDS).stdout.strip()
        nodes = orch.node_folders(run_id)
        until(lambda: _step(nodes[0], 0) > 2 * 5, awaited="two checkpoints", deadline_s=WAIT_S)
        if warm:
            until(lambda: all(map(_is_ready, nodes)), awaited="the waiting processes", deadline_s=WAIT_S)
        pid = orch.rank_pid(run_id, nodes[VICTIM].name, VICTIM)
        begun, last = time.monotonic(), _step(nodes[0], 0)
        os.kill(pid, signal.SIGKILL)
        following = nodes[0].parent.parent / "attempt-2" / nodes[0].name
        until(lambda: _has_started(following), awaited="the next attempt", deadline_s=WAIT_S)
        started_s = time.monotonic() - begun
        until(lambda: _step(following, 0) > last, awaited="a new step", deadline_s=WAIT_S)
        new_step_s = time.monotonic() - begun
        orch("stop", run_id)
        return {NEW_STEP: new_step_s, RUNNING: started_s}

    return run


def _step(node_folder: Path, rank: int) -> int:
    progress = node_folder / "progress" / f"{rank}.json"
    return int(json.loads(progress.read_text("utf-8"))["step"]) if progress.exists() else 0


def _is_ready(node_folder: Path) -> bool:
    record = node_folder / STANDBY_RECORD
    return record.exists() and bool(json.loads(record.read_text("utf-8")).get("ready"))


def _has_started(node_folder: Path) -> bool:
    events = node_folder / "events.jsonl"
    return events.exists() and '"rank-started"' in events.read_text("utf-8")
