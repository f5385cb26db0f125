"""The trial of a step that fails: injected faults are recognised, and a run continues without the node whose device computes wrongly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.paths import ROOT
from tests.train.conftest import clean_environment

pytestmark = [pytest.mark.train, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]

FAULTY = """
import os
import torch
from trainer.tasks import Task

class Faulty(Task):
    \"\"\"A line through points, on a device of n1 that computes wrongly from the fourth loss on.\"\"\"

    count = 0

    def build_model(self):
        return torch.nn.Linear(4, 1)

    def build_data(self, split):
        return [torch.full((4,), i / 64) for i in range(64)] if split == "train" else None

    def loss(self, model, batch):
        self.count += 1
        wrong = os.environ["ORCH_NODE"] == "n1" and self.count > 3
        return (model(batch) - 3).pow(2).mean() * (float("nan") if wrong else 1.0)
"""


def test_sixty_faults_of_devices_data_and_code_are_recognised(tmp_path: Path) -> None:
    words = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        "-m",
        "tests.train.trial_program",
        str(tmp_path / "out"),
    ]
    env = {**clean_environment(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    judged = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["Fault')]
    assert len(judged) == 60, done.stderr[-3000:]
    assert [row for row in judged if row[1] != row[2]] == []


@pytest.mark.extended
def test_run_continues_without_the_node_whose_device_computes_wrongly(farm: Farm, tmp_path: Path) -> None:
    path = farm.inventory(tmp_path, nodes=3, shared=True, env={"OMP_NUM_THREADS": "1"})
    yaml = YAML()
    values = yaml.load(path)
    values["nodes"][2]["tags"] = ["spare"]
    yaml.dump(values, path)
    (tmp_path / "faulty.py").write_text(FAULTY)
    orch = Orch(tmp_path)
    words = ["task=faulty:Faulty", "device=cpu", "steps=8", "report="]
    done = orch("ssh-launch", "--no-check", "-j", "2x1", "--max-retries", "1", *words, timeout_s=200)
    assert (
        "the device of rank 1 computes wrongly, and another rank rightly with the same batch"
        in done.stdout + done.stderr
    )
    status = orch.status()
    assert (status["state"], status["attempt"]) == ("DONE", 2)
    assert [node["node"] for node in status["nodes"]] == ["n0", "n2"]
