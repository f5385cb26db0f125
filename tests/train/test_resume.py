"""Programs that save and resume by the means of their framework are restarted with `--max-retries`, and continue at the newest save."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grounds import components, resuming
from tests.grounds.cli import Orch
from tests.grounds.gcu import environment
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm, open_farm
from tests.grounds.t20 import t20_python

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(240)]

ENV = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}


def _require_resumed(orch: Orch, step: int, *, ranks: int = 2) -> None:
    status = orch.status()
    printed = orch("logs").stdout
    assert (status["state"], status["attempt"]) == ("DONE", 2), printed
    lines = sorted(line["text"] for line in orch.lines("--grep", "^attempt") if line["stream"] == "out")
    assert lines == [f"attempt 2 made 20 steps, last loss {resuming.last_loss()}"] * ranks, printed
    progress = [rank for node in status["nodes"] for rank in node["progress"].values()]
    assert [(rank["step"], rank["phase"]) for rank in progress] == [(step, "done")] * ranks
    assert max(rank["saved"] or 0 for rank in progress) == resuming.STEPS


@pytest.mark.parametrize(
    "framework",
    [
        "transformers",
        *(pytest.param(name, marks=pytest.mark.extended) for name in resuming.PROGRAMS if name != "transformers"),
    ],
)
def test_program_with_a_killed_rank_continues_at_its_newest_save(farm: Farm, tmp_path: Path, framework: str) -> None:
    """The checkpoints are in a relative folder: on a workdir that the nodes share, or saved on each node."""
    if framework != "plain":
        components.module(framework)
    each = ["each"] if framework == "transformers" else []
    farm.inventory(tmp_path, shared=not each, env=ENV)
    (tmp_path / "train.py").write_text(resuming.PROGRAMS[framework])
    orch = Orch(tmp_path)
    done = orch("ssh-launch", "--max-retries", "2", "--", "train.py", "out", *each, timeout_s=200)
    assert "attempt 2: rank 1 on n1 was killed by SIGKILL" in done.stdout
    assert "the newest saved step is 10" in done.stdout
    assert "WARNING: attempt 2" not in done.stdout
    _require_resumed(orch, 20 if framework == "plain" else 30)  # the state of SGD counts no steps


@pytest.mark.parametrize(
    ("framework", "ranks"),
    [
        ("plain", 1),
        *(pytest.param(name, 2, marks=pytest.mark.extended) for name in resuming.PROGRAMS if name != "plain"),
    ],
)
def test_program_with_a_killed_rank_continues_in_its_slurm_job(
    cluster: Cluster, tmp_path: Path, framework: str, ranks: int
) -> None:
    if framework != "plain":
        components.module(framework)
    cluster.inventory(tmp_path, env=ENV)
    (tmp_path / "train.py").write_text(resuming.PROGRAMS[framework])
    orch = Orch(tmp_path, env=cluster.env)
    orch("submit", "-j", f"{ranks}x1", "--max-retries", "2", "--", "train.py", "out", timeout_s=200)
    _require_resumed(orch, 20 if framework == "plain" else 30, ranks=ranks)


@pytest.mark.extended
@pytest.mark.processes
def test_mmengine_with_a_killed_rank_continues_on_a_t20(tmp_path: Path) -> None:
    """With the real MMEngine, torch and Python of a T20 on doubles of the cards."""
    cards = {"python": t20_python(), "env": {**ENV, **environment("t20")}}
    (tmp_path / "train.py").write_text(resuming.PROGRAMS["mmengine"])
    orch = Orch(tmp_path)
    with open_farm(own_account=False) as farm:  # another account may not reach that Python, below the home of this one
        farm.inventory(tmp_path, shared=True, accelerator="gcu", defaults=cards)
        done = orch("ssh-launch", "--no-check", "--share", "--max-retries", "2", "--", "train.py", "out", timeout_s=200)
        assert "attempt 2: rank 1 on n1 was killed by SIGKILL" in done.stdout
        _require_resumed(orch, 30)


@pytest.mark.extended
def test_mmengine_with_a_killed_rank_continues_on_a_t20_under_slurm(cluster: Cluster, tmp_path: Path) -> None:
    cards = {"python": t20_python(), "env": {**ENV, **environment("t20")}}
    cluster.inventory(tmp_path, accelerator="gcu", defaults=cards)
    (tmp_path / "train.py").write_text(resuming.PROGRAMS["mmengine"])
    orch = Orch(tmp_path, env=cluster.env)
    orch("submit", "-j", "2x1", "--max-retries", "2", "--", "train.py", "out", timeout_s=200)
    _require_resumed(orch, 30)
