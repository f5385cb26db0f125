"""`keep:` of the inventory under Slurm, in the workdir that the nodes share."""

from __future__ import annotations

from pathlib import Path

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster


def test_next_job_sees_what_the_last_one_wrote_and_cp_finds_it(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, keep=["outputs"])
    orch = Orch(tmp_path, env=cluster.env)
    script = 'if [ "$RANK" = 0 ]; then echo "$ORCH_RUN_ID" >>outputs/runs; fi'
    orch("submit", "--no-check", "-j", "2x1", "--", "sh", "-c", script)
    orch("rerun", "latest", "-t", "5")
    runs = sorted(record["id"] for record in orch.records())
    orch("cp", "latest:outputs/runs", "copies")
    assert (tmp_path / "copies" / "runs").read_text("utf-8").split() == runs
