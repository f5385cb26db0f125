"""Notice under Slurm that the ranks train separately; over SSH the supervisor does, which sees the progress of all nodes."""

from __future__ import annotations

import os
import time

from orchestrator.node.ranks.one_training import LEAST_STEPS, groups_of, proof_in_attempt
from orchestrator.node.run.run_folder import read_progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from orchestrator.node.run.job import Job

EVERY_S = 5.0


class SeparateWatch:
    """Reads the progress of all nodes on the first one, as long as the ranks of that node may be alone."""

    def __init__(self, job: Job, folder: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._job, self._folder, self._clock_s = job, folder, clock_s
        self._is_needed = (
            job.node_rank == 0 and job.slurm is not None and job.slurm.get("shared", True) and sum(job.ranks) > 1
        )
        self._due_s = clock_s() + EVERY_S
        self._has_proof = False

    def message(self) -> str:
        """The proof and the remedy, once two looks in a row have proved it; else empty."""
        if not self._is_needed or self._clock_s() < self._due_s:
            return ""
        self._due_s = self._clock_s() + EVERY_S
        progress = read_progress(self._folder)
        groups, most = groups_of(progress, LEAST_STEPS), len(self._job.rank_numbers)
        steps = [report["step"] for report in progress.values() if isinstance(report.get("step"), int)]
        if max(steps, default=0) < LEAST_STEPS:
            return ""
        if all(size > most or size == sum(self._job.ranks) for _, size in groups):
            self._is_needed = False  # these ranks are joined, or report no group
            return ""
        found = proof_in_attempt(self._job, os.path.dirname(self._folder), LEAST_STEPS)
        is_proved = bool(found) and self._has_proof
        self._has_proof = bool(found)
        return found if is_proved else ""
