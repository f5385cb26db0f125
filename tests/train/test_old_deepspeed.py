"""
DeepSpeed 0.9.2, from which the vendor's fork for the T20 was made, computes what the present one does.

It needs a folder made by `pip install --no-deps --no-build-isolation --target FOLDER deepspeed==0.9.2`, with `pip install --target FOLDER 'pydantic<2'`
before that and FOLDER on PYTHONPATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grounds.metrics import step_numbers
from tests.paths import ROOT
from tests.train.conftest import TINY, clean_environment

FOLDER = os.environ.get("ORCH_DEEPSPEED_0_9_2")

pytestmark = [
    pytest.mark.train,
    pytest.mark.processes,
    pytest.mark.skipif(not FOLDER, reason="ORCH_DEEPSPEED_0_9_2 names no folder with it"),
]

# 0.9.2 allocates the bucket again in each backward pass: two gigabytes by default.
SETTINGS = '{"zero_optimization": {"reduce_bucket_size": 500000}}'


@pytest.mark.extended
@pytest.mark.parametrize("form", ["whole", "sharded"])
def test_zero2_of_0_9_2_clips_saves_and_resumes_as_the_present_one(tmp_path: Path, form: str) -> None:
    (tmp_path / "ds.json").write_text(SETTINGS)
    words = ["strategy=zero2", f"deepspeed={tmp_path / 'ds.json'}", "accumulation=2", "optim.grad_clip=0.5"]
    words += ["optim.schedule_steps=6", "save_steps=4", "log_steps=1", f"checkpoint={form}", *TINY]
    present, resumed = tmp_path / "present", tmp_path / "resumed"
    _train([*words, "steps=6", f"out={present}"], [])
    old = [str(ROOT / "tests/doubles/deepspeed_0_9"), str(FOLDER)]
    _train([*words, "steps=4", f"out={resumed}"], old)
    _train([*words, "steps=6", f"out={resumed}"], old)
    assert [pytest.approx(step, rel=1e-5) for step in step_numbers(present)] == step_numbers(resumed)


def _train(words: list[str], folders: list[str]) -> None:
    """Train on two ranks, with these folders on PYTHONPATH; the DeepSpeed is that of the last one."""
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**clean_environment(), "PYTHONPATH": os.pathsep.join([*folders, str(ROOT)]), "OMP_NUM_THREADS": "1"}
    program = "import importlib.util; print(importlib.util.find_spec('deepspeed').origin)"
    found = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(folders[-1] if folders else sys.prefix)
    done = subprocess.run(
        [*torchrun, "-m", "trainer", *words], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
