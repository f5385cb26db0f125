"""Which variables reach Slurm's commands, and which of them are reported."""

from __future__ import annotations

import pytest

from orchestrator.launchers.slurm.environment import FILTERS, applied, removed_from_sbatch, warnings, without

# The names are those in the programs of Slurm 22.05.
FILTERING = [
    "SQUEUE_PARTITION",
    "SQUEUE_USERS",
    "SQUEUE_ACCOUNT",
    "SQUEUE_STATES",
    "SQUEUE_FORMAT",
    "SCONTROL_ALL",
    "SCANCEL_STATE",
    "SACCT_FORMAT",
    "SINFO_PARTITION",
    "SLURM_CLUSTERS",
    "SLURM_TIME_FORMAT",
    "SLURM_BITSTR_LEN",
]
KEPT = ["SLURM_CONF", "SLURM_JWT", "SLURM_SACK_SOCKET", "PATH", "SQUEUED"]
OF_A_JOB = [
    "SLURM_JOB_ID",
    "SLURM_NTASKS",
    "SLURM_CPUS_PER_TASK",
    "SLURMD_NODENAME",
    "SRUN_CPUS_PER_TASK",
    "SBATCH_MEM_BIND_LIST",
]
SITE = [
    "SBATCH_PARTITION",
    "SBATCH_ACCOUNT",
    "SBATCH_QOS",
    "SBATCH_TIMELIMIT",
    "SBATCH_RESERVATION",
    "SBATCH_MEM_PER_CPU",
]
NEVER = [
    "SBATCH_EXPORT",
    "SBATCH_JOB_NAME",
    "SBATCH_ARRAY_INX",
    "SBATCH_WAIT",
    "SBATCH_NO_REQUEUE",
    "SBATCH_OUTPUT",
    "SBATCH_CLUSTERS",
]


def _left(names: list[str], removed: str) -> list[str]:
    return list(without(dict.fromkeys(names, "x"), removed))


def test_variables_that_filter_or_format_output_are_removed_from_every_command() -> None:
    assert _left([*FILTERING, *KEPT, *OF_A_JOB], FILTERS) == KEPT + OF_A_JOB
    assert _left(FILTERING, removed_from_sbatch([])) == []


def test_variables_of_a_surrounding_job_are_removed_from_sbatch_and_defaults_of_the_user_remain() -> None:
    assert _left([*KEPT, *OF_A_JOB, *SITE, *NEVER], removed_from_sbatch([])) == KEPT + SITE


@pytest.mark.parametrize(
    ("option", "variables"),
    [
        ("--partition=gpu", {"SBATCH_PARTITION"}),
        ("--time=10", {"SBATCH_TIMELIMIT"}),
        ("--mem=4G", {"SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_NODE"}),
        ("--mem-per-gpu=4G", {"SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_NODE"}),
        ("--cpus-per-task=2", {"SBATCH_CPUS_PER_GPU"}),
        ("--gpus-per-node=8", {"SBATCH_GPUS_PER_NODE"}),
        ("--switches=1@10", {"SBATCH_REQ_SWITCH", "SBATCH_WAIT4SWITCH"}),
        ("--exclusive", {"SBATCH_EXCLUSIVE"}),
    ],
)
def test_option_in_the_inventory_wins_over_the_variables_that_would_override_it(
    option: str, variables: set[str]
) -> None:
    variables_of_options = "SBATCH_MEM_PER_NODE SBATCH_CPUS_PER_GPU SBATCH_GPUS_PER_NODE SBATCH_REQ_SWITCH SBATCH_WAIT4SWITCH SBATCH_EXCLUSIVE"
    names = SITE + variables_of_options.split()
    assert set(names) - set(_left(names, removed_from_sbatch([option]))) == variables


def test_applied_and_ignored_variables_are_named() -> None:
    variables = {
        "SBATCH_QOS": "high",
        "SBATCH_ACCOUNT": "proj",
        "SBATCH_EXPORT": "NONE",
        "SLURM_CLUSTERS": "c2",
        "A": "b",
    }
    options = ["--account=other"]
    assert applied(variables, options) == {"SBATCH_QOS": "high"}
    job, cluster = warnings(variables, options, "login0")
    assert job.startswith("SBATCH_QOS=high, set on login0, applies to the job;")
    assert cluster.startswith("SLURM_CLUSTERS=c2 on login0 is not used")
    assert warnings({"SLURM_CONF": "/etc/slurm.conf"}, [], "login0") == []
