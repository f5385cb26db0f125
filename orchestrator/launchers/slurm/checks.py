"""
Checks before a submission: requests that sbatch would refuse, or would queue although they can never run.

They parse text output, the same from Slurm 20.11 to 25.x. A false alarm would keep users from work, so uncertain cases are left
to sbatch: limits that a QOS may lift, and a job without a partition, which the site may route.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import LaunchError, UsageError
from orchestrator.inventory.document import did_you_mean
from orchestrator.launchers.slurm.queue import RunCommand
from orchestrator.launchers.slurm.submit import NO_CONFIGURATION
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.names.hostlist import expand, fold
from orchestrator.portable.names.slurm_options import memory_mb, option_value, requests_cards, time_limit_s

# The words in AccountingStorageEnforce that make slurmctld refuse an unknown account or QOS.
_ENFORCED = {"account": "associations", "qos": "qos"}
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Partition:
    """A line of `scontrol show partition`; `names` is empty if they cannot be parsed."""

    name: str
    is_default: bool
    state: str
    nodes: int | None
    names: frozenset[str]
    most_nodes: float
    longest: str
    given: str
    """The time limit of a job that requests none."""
    most_memory_mb: float = math.inf
    """Per node."""

    def __str__(self) -> str:
        most = "" if math.isinf(self.most_nodes) else f", at most {self.most_nodes:.0f} a job"
        return f"{self.name} ({self.state}, {self.nodes} nodes{most}, time limit {self.longest})"


def check(
    run: RunCommand, plan: LaunchPlan, default_partition: str | None = None, *, has_qos: bool = False
) -> list[str]:
    """
    Refuse a job that the cluster cannot run; return warnings, one sentence each.

    Args:
        default_partition: the partition if the plan has none; None for Slurm's own default.
        has_qos: the job gets a QOS from the environment, which may lift the limits of the partition.

    Raises:
        UsageError: a name in the plan does not exist on this cluster, or a limit is exceeded.
        LaunchError: the partition starts no jobs at present, or Slurm's commands do not work.
    """
    done = run(["scontrol", "--all", "--oneliner", "show", "partition"])
    partitions = {partition.name: partition for partition in map(_partition, done.stdout.splitlines()) if partition}
    if fatal := re.search(r"fatal: .*", done.stderr):
        raise LaunchError(f"Slurm's commands do not work here: scontrol: {fatal[0]}", hint=NO_CONFIGURATION)
    if done.returncode != 0 or not partitions:
        error = (done.stderr.strip() or "it lists no partition").splitlines()[-1]
        return [f"nothing was checked before the submission: scontrol show partition: {error}"]
    hint = "partitions here: " + "; ".join(map(str, list(partitions.values())[:_SHOWN]))
    if problems := [*_too_many_tasks(run, plan), *_unknown_to_accounting(run, plan)]:
        raise UsageError("\n".join(problems))
    has_qos = has_qos or option_value(plan.slurm, "qos") is not None
    requested = option_value(plan.slurm, "partition")
    if not requested:
        names = default_partition.split(",") if default_partition else []
        defaults = [
            partition
            for partition in partitions.values()
            if (partition.name in names if names else partition.is_default)
        ]
        problems = [
            problem for partition in defaults for problem in _exceeded(partition, partitions, plan, has_qos=has_qos)
        ]
        return [*problems, *_outside_inventory(defaults, plan)]
    chosen = requested.split(",")
    if problems := [_unknown_name("partition", name, list(partitions)) for name in chosen if name not in partitions]:
        raise UsageError("\n".join(problems), hint=hint)
    exceeded = [list(_exceeded(partitions[name], partitions, plan, has_qos=has_qos)) for name in chosen]
    if all(exceeded):  # of several partitions, Slurm uses one that can run the job
        raise UsageError("\n".join(problem for problems in exceeded for problem in problems), hint=hint)
    if all(partitions[name].state != "UP" for name in chosen):
        raise LaunchError(f"slurm.partition: no job starts in {requested}, which is not UP now", hint=hint)
    return _outside_inventory([partitions[name] for name in chosen], plan)


def nodes_outside_inventory(run: RunCommand, plan: LaunchPlan, default_partition: str | None = None) -> list[str]:
    """The warning about nodes outside the inventory that a submission of the plan would give."""
    return _outside_inventory([partition for partition, _ in _used_partitions(run, plan, default_partition)], plan)


def time_limit_of_partition_s(run: RunCommand, plan: LaunchPlan, default_partition: str | None = None) -> float:
    """Return the time limit in seconds of a job that requests none: that of the partition, the shortest of several; infinite if unknown."""
    limits_s = [time_limit_s(partition.given) for partition, _ in _used_partitions(run, plan, default_partition)]
    return min((limit_s for limit_s in limits_s if limit_s), default=math.inf)


def gives_gpus_cores(run: RunCommand, plan: LaunchPlan, default_partition: str | None = None) -> bool:
    """Return whether Slurm adds cores to the job's GPUs by itself (DefCpuPerGPU); False if that is not known."""
    if "DefCpuPerGPU=" in run(["scontrol", "show", "config"]).stdout:
        return True
    used = _used_partitions(run, plan, default_partition)
    return bool(used) and all("DefCpuPerGPU=" in line for _, line in used)


def _used_partitions(
    run: RunCommand, plan: LaunchPlan, default_partition: str | None
) -> Sequence[tuple[_Partition, str]]:
    """The partitions that the job may use, each with its line."""
    requested = option_value(plan.slurm, "partition") or default_partition
    lines = run(["scontrol", "--all", "--oneliner", "show", "partition"]).stdout.splitlines()
    partitions = [(partition, line) for line in lines if (partition := _partition(line))]
    names = requested.split(",") if requested else [found.name for found, _ in partitions if found.is_default]
    return [(partition, line) for partition, line in partitions if partition.name in names]


def cards_not_requested(run: RunCommand, plan: LaunchPlan, applied: Iterable[str]) -> list[str]:
    """
    The warning that a job for cards requests none, on a cluster that has them to request.

    Args:
        applied: the SBATCH_* variables that apply to the job.
    """
    kinds = sorted({node.accelerator for node in plan.nodes} & {"cuda", "gcu"})
    is_requested = requests_cards(plan.slurm) or any(
        name.startswith(("SBATCH_GRES", "SBATCH_GPUS")) for name in applied
    )
    if not kinds or is_requested:
        return []
    config = run(["scontrol", "show", "config"]).stdout
    known = re.search(r"^GresTypes\s*=\s*(\S+)", config, re.MULTILINE)
    names = [name for name in ("gpu", "gcu") if known and name in known[1].split(",")]
    if not names:
        return []
    warning = (
        f"accelerator: {kinds[0]}, but the job requests no card, so its ranks may see none, also with slurm.exclusive"
    )
    return [f"{warning}: set slurm.gres: {names[0]} in the inventory, or --set slurm.gres={names[0]}"]


def _partition(line: str) -> _Partition | None:
    """Parse a line of `scontrol --oneliner show partition`; None for other lines."""
    fields = dict(re.findall(r"(\w+)=(\S*)", line))
    if "PartitionName" not in fields:
        return None
    try:
        names = expand(fields.get("Nodes", ""))
    except ValueError:  # more names than a host list may have, or a notation that only Slurm knows
        names = []
    most, count, memory = (fields.get(name, "") for name in ("MaxNodes", "TotalNodes", "MaxMemPerNode"))
    return _Partition(
        name=fields["PartitionName"],
        is_default=fields.get("Default") == "YES",
        state=fields.get("State", "UP"),
        nodes=int(count) if count.isdecimal() else None,
        names=frozenset(names),
        most_nodes=int(most) if most.isdecimal() else math.inf,
        longest=(longest := fields.get("MaxTime", "UNLIMITED")),
        given=longest if (default := fields.get("DefaultTime", "NONE")) == "NONE" else default,
        most_memory_mb=int(memory) if memory.isdecimal() else math.inf,
    )


def _exceeded(
    partition: _Partition, partitions: Mapping[str, _Partition], plan: LaunchPlan, *, has_qos: bool
) -> Iterator[str]:
    """The limits of the partition that the job exceeds, so that it can never run there."""
    count, title = plan.node_count + plan.spare_count, f"partition {partition.name}"
    if partition.nodes is not None and count > partition.nodes:
        yield f"nodes: {count} are requested, and {title} has {partition.nodes}"
    elif not plan.by_count and partition.names:
        absent = {node.name for node in plan.nodes} - partition.names
        unknown = absent.difference(*(listed.names for listed in partitions.values()))
        if unknown:
            yield f"nodes: this cluster has no {fold(unknown)}; {title} has {fold(partition.names)}"
        if in_others := absent - unknown:
            yield f"nodes: {fold(in_others)} is not in {title}, which has {fold(partition.names)}"
    if has_qos:
        return
    if partition.nodes and partition.most_nodes < count <= partition.nodes:
        yield f"nodes: {count} are requested, and {title} allows {partition.most_nodes:.0f} a job"
    memory = option_value(plan.slurm, "mem") or ""
    if memory_mb(memory) > partition.most_memory_mb:
        yield f"slurm.mem: {memory} is more than {title} allows per node: {partition.most_memory_mb:.0f}M"
    time = option_value(plan.slurm, "time") or ""
    if time_limit_s(time) > (time_limit_s(partition.longest) or math.inf):
        yield f"slurm.time: {time} is more than {title} allows: {partition.longest}"


def _outside_inventory(partitions: Iterable[_Partition], plan: LaunchPlan) -> list[str]:
    """The warning that Slurm, which chooses the nodes, may choose some that are none of the plan's."""
    if not plan.by_count:
        return []
    excluded = option_value(plan.slurm, "exclude")
    known = {node.name for node in plan.nodes}.union(expand(excluded) if excluded else ())
    outside = {name for partition in partitions for name in partition.names} - known
    if not outside:
        return []
    names, them = fold(outside), "it" if len(outside) == 1 else "them"
    remedy = f"add {them} to nodes: in the inventory, or set slurm.exclude: {names}"
    return [f"Slurm may choose {names}, for which the job has no settings: {remedy}"]


def _too_many_tasks(run: RunCommand, plan: LaunchPlan) -> Iterator[str]:
    """A sweep of more runs than a job array may have tasks on this cluster."""
    if plan.sweep is None:
        return
    limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", run(["scontrol", "show", "config"]).stdout, re.MULTILINE)
    count = len(plan.sweep.runs)
    if limit and count > int(limit[1]):
        yield f"--sweep: {count} runs, and this cluster allows {limit[1]} tasks per job array (MaxArraySize); sweep fewer values at a time"


def _unknown_to_accounting(run: RunCommand, plan: LaunchPlan) -> list[str]:
    """Account and QOS that slurmctld would refuse because accounting does not have them; none without accounting."""
    given = {field: option_value(plan.slurm, field) for field in _ENFORCED}
    if not any(given.values()):
        return []
    config = run(["scontrol", "show", "config"]).stdout
    enforced = re.search(r"^AccountingStorageEnforce\s*=\s*(\S+)", config, re.MULTILINE)
    problems = []
    for field, word in _ENFORCED.items():
        name = given[field]
        if not name or enforced is None or word not in enforced[1].split(","):
            continue
        column = "name" if field == "qos" else "account"
        done = run(["sacctmgr", "--noheader", "--parsable2", "show", field, f"format={column}"])
        known = done.stdout.split()
        if done.returncode == 0 and known and name.lower() not in map(str.lower, known):
            yours = "; `sacctmgr show associations user=$USER format=account,qos` lists yours"
            problems.append(_unknown_name(field, name, known) + yours)
    return problems


def _unknown_name(field: str, name: str, known: Sequence[str]) -> str:
    names = f"{did_you_mean(name, known)}it has {', '.join(sorted(known)[:_SHOWN])}"
    return f"slurm.{field}: {name} is not known to this cluster; {names}"
