"""step.sh of `orch submit --here`, as bash runs it, with a srun that records its environment and ends at once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.plan.sbatch import step_script
from orchestrator.run import Allocation, Program, Request

OF_THE_JOB = {
    "SLURM_GPUS": "16",
    "SLURM_GPUS_PER_TASK": "1",
    "SLURM_GPU_BIND": "single:1",
    "SLURM_TRES_PER_TASK": "gres/gpu=1",
    "SLURM_NTASKS_PER_GPU": "1",
    "SLURM_NTASKS_PER_CORE": "1",
    "SLURM_CPUS_PER_GPU": "4",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_EXACT": "1",
    "SLURM_HINT": "nomultithread",
    "SLURM_EXPORT_ENV": "NONE",
}


def test_options_of_the_job_for_its_tasks_do_not_reach_the_one_task_per_node(tmp_path: Path) -> None:
    request = Request("slurm", Program("executable", ("true",)), allocation=Allocation("7", ("n0",)))
    inventory = Inventory(name="demo", nodes=(Node(name="n0"),))
    plan = make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b", home=str(tmp_path))
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\nenv | grep ^SLURM_ >>{tmp_path}/environment\n")
    srun.chmod(0o755)
    env = {"PATH": f"{tmp_path}{os.pathsep}/usr/bin:/bin", "SLURM_JOB_ID": "7", **OF_THE_JOB}
    # Slower than the coprocess, which ends at once.
    script = step_script(plan).replace("holder_pid=$!\n", "holder_pid=$!; sleep 0.2\n")
    assert "sleep" in script
    done = subprocess.run(["/bin/bash", "-c", script], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set((tmp_path / "environment").read_text("utf-8").split()) == {"SLURM_JOB_ID=7"}
