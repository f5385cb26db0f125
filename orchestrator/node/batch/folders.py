"""The folders of a Slurm job that all nodes share, made on the head before the agents start."""

from __future__ import annotations

import contextlib
import os

from orchestrator.node.code_folder import make_code_folder, make_shared_folder
from orchestrator.node.job import Refused, load_job


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
