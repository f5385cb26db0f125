"""The error for a refused submission, with recorded output of sbatch and of sites' plug-ins."""

from __future__ import annotations

import pytest

from orchestrator.launchers.slurm.submit import job_id, refusal

RULER = "sbatch: error: " + "-" * 60


@pytest.mark.parametrize(
    ("stderr", "reason", "hint"),
    [
        (  # Slurm 22.05
            "sbatch: unrecognized option '--het-group=0'\nTry \"sbatch --help\" for more information\n",
            "unrecognized option '--het-group=0'",
            "slurm.options",
        ),
        (  # Slurm 22.05 without slurm.conf
            "sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a configuration source\n",
            "fetch_config: DNS SRV lookup failed; fatal: Could not establish a configuration source",
            "SLURM_CONF",
        ),
        (  # a plug-in of a site
            (
                f"{RULER}\nsbatch: error: You must specify an account (-A)\n{RULER}\n"
                "sbatch: error: Batch job submission failed: Unspecified error\n"
            ),
            "You must specify an account (-A); Batch job submission failed: Unspecified error",
            "slurm.account",
        ),
        (
            "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n",
            "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "a limit of the QOS or the account is exceeded",
        ),
        (
            "sbatch: lua: not at night\nsbatch: error: Batch job submission failed: Unspecified error\n",
            "lua: not at night; Batch job submission failed: Unspecified error",
            "sinfo",
        ),
        ("slow down\n", "slow down", "sinfo"),
        ("", "it printed nothing", "sinfo"),
    ],
    ids=["option", "fatal", "account", "limit", "lua", "wrapper", "nothing"],
)
def test_refusal_quotes_sbatch_and_names_the_next_step(stderr: str, reason: str, hint: str) -> None:
    error = refusal(stderr)
    assert str(error) == f"sbatch refused the job: {reason}"
    assert hint in error.hint


def test_job_id_is_the_last_line_of_that_form() -> None:
    assert job_id("Note: your job 1 uses 3%\n7\n12;cluster\nbye\n") == "12"
    assert job_id("Submitted batch job 7\n") is None
