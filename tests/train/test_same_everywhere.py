"""The shared trainer gives the same losses over ssh, Slurm and local nodes with the same seed and world size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]

SETTINGS = (
    "steps=6",
    "log_steps=1",
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.context=32",
    "micro_batch=2",
)
LOCAL = """
name: here
accelerator: cpu
devices: 1
transport: local
env: {OMP_NUM_THREADS: 1}
defaults: {workdir: WORKDIR}
nodes: [{name: "n[0-1]"}]
"""


def _losses(orch: Orch, rank: int) -> list[str]:
    return re.findall(r"step=\d+ loss=\S+", orch("logs", "--rank", str(rank)).stdout)


@pytest.mark.extended
@pytest.mark.slow
def test_losses_are_equal_over_ssh_slurm_and_local_and_status_shows_the_ranks(
    farm: Farm, cluster: Cluster, tmp_path: Path
) -> None:
    """
    All runs read one text: the default text is that of the interpreter's library, and the nodes may have different interpreters.
    """
    text = farm.home / "text.txt"
    text.write_bytes(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    text.chmod(0o644)
    settings = (*SETTINGS, f"data.paths={text}")
    env = {"OMP_NUM_THREADS": "1"}
    losses = {}
    for name in ("ssh", "slurm", "local"):
        (tmp_path / name).mkdir()
    farm.inventory(tmp_path / "ssh", nodes=2, env=env)
    cluster.inventory(tmp_path / "slurm", devices=2, env=env)
    (tmp_path / "local" / "inventory.yaml").write_text(LOCAL.replace("WORKDIR", str(tmp_path / "local" / "work")))
    for name, words in {
        "ssh": ("ssh-launch", "--nodes", "n0,n1"),
        "slurm": ("submit", "-j", "1x2"),
        "local": ("ssh-launch",),
    }.items():
        orch = Orch(tmp_path / name, env=cluster.env)
        done = orch(*words, *settings, timeout_s=200)
        assert "is DONE" in done.stderr
        status = orch.status()
        summary = status["summary"]
        assert summary["steps"] == 6
        assert summary["checkpoint"]
        progress = [p for node in status["nodes"] for p in node["progress"].values()]
        assert {p["phase"] for p in progress} == {"done"}
        assert any("2/2 ranks ready, backend gloo, device cpu" in str(p.get("ready")) for p in progress)
        losses[name] = (_losses(orch, 0), summary["last_loss"])
        lines = orch("logs", "--rank", "1").stdout.splitlines()
        assert lines
        assert all(line.startswith("[n") and ":1]" in line for line in lines)
    assert losses["ssh"] == losses["slurm"] == losses["local"]
    assert losses["ssh"][0]
