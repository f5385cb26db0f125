"""The folders of a Slurm job that the head makes before the agents start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.node.batch.folders import make_folders


@pytest.mark.parametrize("is_shared", [True, False])
def test_head_copies_the_code_and_makes_the_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    (bundle / "code").mkdir(parents=True)
    (bundle / "code" / "train.py").touch()
    (run / "attempt-1").mkdir(parents=True)
    job = {"version": 1, "run_id": "x", "attempt": 1, "run_dir": str(run), "bundle_dir": str(bundle), "nodes": None}
    job |= {"addresses": [], "ranks": [1, 1], "grace_s": 1.0, "slurm": {} if is_shared else {"shared": False}}
    job |= {"program": {"python": True, "args": ["train.py"], "pythonpath": None, "cwd": ""}}
    (run / "attempt-1" / "job.json").write_text(json.dumps(job))
    make_folders(str(run / "attempt-1" / "job.json"))
    assert (run / "code" / "train.py").is_file()
    assert (run / "shared").is_dir() is is_shared


def test_error_is_left_to_the_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    make_folders(str(tmp_path / "job.json"))
    assert list(tmp_path.iterdir()) == []
