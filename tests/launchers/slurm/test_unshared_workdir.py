"""A job's log that is not in the run's folder: the workdir is named as the cause only if it is known to be."""

from __future__ import annotations

import pytest

from orchestrator.launchers.job import JobStatus
from orchestrator.launchers.slurm.unshared_workdir import missing_log


@pytest.mark.parametrize(
    ("state", "reason", "is_known"),
    [
        ("RUNNING", "", True),
        ("FAILED", "JobLaunchFailure", True),  # Slurm 22.05, where the folder does not exist on the node
        ("FAILED", "RaisedSignal:53(Real-time_signal_19)", True),
        ("FAILED", "NonZeroExitCode", True),
        ("NODE_FAIL", "NodeDown", False),
        ("BOOT_FAIL", "", False),
        ("FAILED", "Prolog", False),
        ("GONE", "", False),
    ],
)
def test_workdir_is_blamed_only_if_slurm_wrote_the_log_elsewhere_or_could_not(
    state: str, reason: str, is_known: bool
) -> None:
    text = missing_log(JobStatus(state, reason), "/w on this machine")
    assert text.startswith("the job's log is missing from /w on this machine")
    assert ("workdir" in text) == is_known
