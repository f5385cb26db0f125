"""The program of the check, as it is in a bundle, with a node's bare Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.code import bundle
from tests.node.agent.test_agent_ground import PYTHON38
from tests.portable.checks.facts import gpu_node

PRIVATE = "mlx5_private"


@pytest.mark.processes
@pytest.mark.skipif(PYTHON38 is None, reason="no Python 3.8 on PATH or in pyenv")
def test_bundle_has_all_that_the_check_needs_on_python_3_8(tmp_path: Path) -> None:
    assert PYTHON38 is not None
    for name, source in bundle.build(trainer=False, code=None, checks=True).files:
        target = tmp_path / "bundle" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    folder = tmp_path / "run" / "attempt-1"
    folder.mkdir(parents=True)
    usual = {"ranks": 1, "accelerator": "auto", "network": "auto", "env": ["NCCL_IB_HCA"], "private": ["NCCL_IB_HCA"]}
    request = {
        "workdir": str(tmp_path),
        "out": None,
        "code": None,
        "editable": None,
        "skipped": ["nofile"],
        "python_may_differ": False,
    }
    (folder / "check.json").write_text(
        json.dumps({**request, "usual": usual, "nodes": {"n1": {"address": "127.0.0.1"}}})
    )
    (folder / "job.json").write_text(json.dumps({"ranks": [1, 1]}))
    check = tmp_path / "bundle/orchestrator/portable/job_check/__main__.py"
    program = [PYTHON38, "-E", "-s", "-S", str(check)]

    def run(verb: str, node: str, *more: str) -> str:
        env = {**os.environ, "SLURMD_NODENAME": node, "SLURM_JOB_NODELIST": "n[0-1]", "NCCL_IB_HCA": PRIVATE}
        argv = [*program, verb, str(folder / "job.json"), *more]
        done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    begun = str(time.time())
    for name in ("n0", "n1"):
        run("probe", name)
        file = tmp_path / "run" / "facts" / "0" / f"{name}.json"
        assert file.stat().st_mode & 0o777 == 0o600
        with_cards = gpu_node(name, cards=3)
        cards = {"cards": with_cards["cards"], "topology": with_cards["topology"], "hcas": with_cards["hcas"]}
        facts = json.loads(file.read_text())
        assert facts["environment"]["NCCL_IB_HCA"] == PRIVATE
        file.write_text(json.dumps({**facts, **cards}))
    output = run("check", "n0", begun) + run("variables", "n0")
    texts = [file.read_text() for file in folder.rglob("*") if file.is_file()]
    assert any("events" in file.name for file in folder.rglob("*"))
    assert not any(PRIVATE in text for text in [output, *texts])
