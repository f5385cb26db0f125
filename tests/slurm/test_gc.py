"""orch gc of Slurm runs, whose shared working folder is cleaned from here. Dry runs: processes here may be another user's."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from orchestrator.inventory.model import load
from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster


def test_gc_removes_a_slurm_run_that_has_ended_and_keeps_one_that_runs(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path)
    orch = Orch(tmp_path, env=cluster.env)
    orch("submit", "-j", "1x1", "--", "true")
    ended = orch.status()["id"]
    running = orch("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    cluster.wait_for(orch, running, "RUNNING")
    then = time.time() - 8 * 86400
    for root in (Path(load(tmp_path / "inventory.yaml").nodes[0].workdir), orch.home):
        for path in root.rglob("*"):
            os.utime(path, (then, then), follow_symlinks=False)
    plan = json.loads(orch("gc", "--dry-run", "--json").stdout)
    folders = {
        (entry["kind"], entry["name"]): (entry["action"], entry["why"], *entry["results"]) for entry in plan["folders"]
    }
    assert folders["run", ended] == folders["record", ended] == ("remove", "")
    assert folders["run", running][:2] == ("keep", "its processes are alive")
    assert folders["record", running][0] == "keep"
    assert running not in {stray["run"] for stray in plan["strays"]}
