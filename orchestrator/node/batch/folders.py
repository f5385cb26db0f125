"""The folders of a Slurm job: those that all nodes share, made on the head before the agents start, and that in the memory of each node."""

from __future__ import annotations

import contextlib
import os
import sys

from orchestrator.node.run.code_folder import make_code_folder, make_shared_folder
from orchestrator.node.run.job import Refused, load_job
from orchestrator.node.run.memory_folder import memory_folder, remove_memory


def make_folders(path: str) -> None:
    """
    Make the code folder and the shared folder of the run of a job.json.

    An error is left to the agents, which try again and record it: this process has no record.
    """
    with contextlib.suppress(OSError, Refused):
        job = load_job(path, os.environ["SLURMD_NODENAME"], 0)
        make_code_folder(job.run_dir, job.bundle_dir)
        if job.slurm is not None and job.slurm.get("shared", True):
            make_shared_folder(job.run_dir)


def forget_memory(path: str, node: str) -> int:
    """Remove what the ranks of the run of a job.json have left for another attempt in the memory of this node; return the exit code."""
    problem = remove_memory(memory_folder(load_job(path, "", 0).run_id, node))
    if problem:
        print(f"orch: the memory of this run was not removed: {problem}", file=sys.stderr)
    return 1 if problem else 0
