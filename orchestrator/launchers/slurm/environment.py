"""
Environment variables that change what Slurm's commands do, the same on this machine and on a login node. Pure.

Filters such as SQUEUE_PARTITION are removed, because a job that squeue leaves out would appear lost. For sbatch, SBATCH_* variables
remain as defaults of the fields that the inventory leaves open, and SLURM_*, which are values of a job that orch may run in, are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from orchestrator.portable.names.slurm_options import option_name

FILTERS = r"(SQUEUE|SCONTROL|SCANCEL|SINFO|SACCT|SACCTMGR)_|SLURM_(CLUSTERS|TIME_FORMAT|BITSTR_LEN|TOPO_LEN)$"
"""The variables, as a regular expression of their names, with which Slurm's commands report other jobs or in another form."""
# Without CONF, JWT and SACK_*, which select the cluster and authenticate the user.
_OF_A_JOB = r"SLURM_(?!CONF$|JWT$|SACK_)|SLURMD_|SRUN_|SBATCH_(MEM|CPU)_BIND"
# An option of sbatch, or a group of options that exclude each other -> the SBATCH_* variables that would override it.
_VARIABLES = {
    "array": "ARRAY_INX",
    "bb": "BURST_BUFFER",
    "cpu-freq": "CPU_FREQ_REQ",
    "cpus-per-": r"CPUS_PER_\w+",
    "mem": r"MEM(_PER_\w+)?",
    "requeue": "(NO_)?REQUEUE",
    "switches": "REQ_SWITCH|WAIT4SWITCH",
    "time": "TIMELIMIT",
}
_RESERVED = ("array", "clusters", "error", "export", "job-name", "no-kill", "open-mode", "output", "requeue", "wait")
"""Options whose variables are never used: orch sets the option itself, or could not follow the job."""


def removed_from_sbatch(options: Iterable[str]) -> str:
    """The variables to remove for sbatch, as a regular expression of their names; the options of the batch script win over variables."""
    names = {option_name(option).removeprefix("no-") for option in options} | set(_RESERVED)
    variables = "|".join(sorted(_variable(name) for name in names))
    return f"{FILTERS}|{_OF_A_JOB}|SBATCH_({variables})$"


def _variable(option: str) -> str:
    """The SBATCH_* variables of an option, as a regular expression without the prefix."""
    group = next((prefix for prefix in ("cpus-per-", "mem") if option.startswith(prefix)), option)
    return _VARIABLES.get(group, option.upper().replace("-", "_"))


def without(environment: Mapping[str, str], removed: str) -> dict[str, str]:
    """The environment without the variables whose names match."""
    pattern = re.compile(removed)
    return {name: value for name, value in environment.items() if not pattern.match(name)}


def applied(environment: Mapping[str, str], options: Iterable[str]) -> dict[str, str]:
    """The SBATCH_* variables that apply to a job with these options."""
    kept = without(environment, removed_from_sbatch(options))
    return {name: kept[name] for name in sorted(kept) if name.startswith("SBATCH_")}


def warnings(environment: Mapping[str, str], options: Iterable[str], machine: str) -> list[str]:
    """Name the variables that apply to the job, and those that would have sent it to another cluster."""
    settings = " ".join(f"{name}={value}" for name, value in applied(environment, options).items())
    clusters = [name for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS") if environment.get(name)]
    found = [
        f"{name}={environment[name]} on {machine} is not used: jobs go to the cluster in slurm.conf there"
        for name in clusters
    ]
    if settings:
        remark = "applies to the job; fields under slurm: in the inventory take precedence"
        found.insert(0, f"{settings}, set on {machine}, {remark}")
    return found
