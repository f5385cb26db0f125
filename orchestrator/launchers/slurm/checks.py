"""
What is asked of Slurm before anything is submitted: what sbatch would refuse, or would queue though it can never run.

Of text output, which Slurm 20.11 has as well as 25.x. A false alarm would keep somebody from work, so what is not certain
is left to sbatch: limits where a QOS may lift them, and a job that names no partition, which the site may route as it likes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import LaunchError, UsageError
from orchestrator.inventory.document import did_you_mean
from orchestrator.launchers.slurm.queue import RunCommand
from orchestrator.names.hostlist import expand, fold
from orchestrator.names.slurm_options import option_value, time_limit_s
from orchestrator.plan.plan import LaunchPlan

# What AccountingStorageEnforce has to name before slurmctld refuses a name that the accounts do not have.
_ENFORCED = {"account": "associations", "qos": "qos"}
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Partition:
    """A line of `scontrol show partition`; `names` empty where they cannot be read."""

    name: str
    is_default: bool
    state: str
    nodes: int | None
    names: frozenset[str]
    most_nodes: float
    longest: str

    def __str__(self) -> str:
        most = "" if math.isinf(self.most_nodes) else f", at most {self.most_nodes:.0f} a job"
        return f"{self.name} ({self.state}, {self.nodes} nodes{most}, time limit {self.longest})"


def check(run: RunCommand, plan: LaunchPlan) -> list[str]:
    """
    Refuse what the cluster cannot run; returns what is doubtful, one sentence each, to warn about.

    Raises:
        UsageError: what the user wrote does not exist here, or is beyond a limit.
        LaunchError: the partition starts no jobs at present.
    """
    done = run(["scontrol", "--all", "--oneliner", "show", "partition"])
    partitions = {one.name: one for one in map(_partition, done.stdout.splitlines()) if one}
    if done.returncode != 0 or not partitions:
        why = (done.stderr.strip() or "it names no partition").splitlines()[-1]
        return [f"nothing was checked before the submission: scontrol show partition: {why}"]
    hint = "partitions here: " + "; ".join(map(str, list(partitions.values())[:_SHOWN]))
    if wrong := _unknown_to_the_accounts(run, plan):
        raise UsageError("\n".join(wrong))
    named = option_value(plan.slurm, "partition")
    if not named:
        return [problem for one in partitions.values() if one.is_default for problem in _misfits(one, partitions, plan)]
    chosen = named.split(",")
    if wrong := [_unknown("partition", name, list(partitions)) for name in chosen if name not in partitions]:
        raise UsageError("\n".join(wrong), hint=hint)
    misfits = [list(_misfits(partitions[name], partitions, plan)) for name in chosen]
    if all(misfits):  # of several partitions, Slurm takes whichever can run the job
        raise UsageError("\n".join(problem for found in misfits for problem in found), hint=hint)
    if all(partitions[name].state != "UP" for name in chosen):
        raise LaunchError(f"slurm.partition: no job starts in {named}, which is not UP now", hint=hint)
    return []


def _partition(line: str) -> _Partition | None:
    """Read a line of `scontrol --oneliner show partition`; None for anything else."""
    shown = dict(re.findall(r"(\w+)=(\S*)", line))
    if "PartitionName" not in shown:
        return None
    try:
        names = expand(shown.get("Nodes", ""))
    except ValueError:  # more of them than a host list may have, or a notation of Slurm's own
        names = []
    most, count = shown.get("MaxNodes", ""), shown.get("TotalNodes", "")
    return _Partition(
        name=shown["PartitionName"],
        is_default=shown.get("Default") == "YES",
        state=shown.get("State", "UP"),
        nodes=int(count) if count.isdecimal() else None,
        names=frozenset(names),
        most_nodes=int(most) if most.isdecimal() else math.inf,
        longest=shown.get("MaxTime", "UNLIMITED"),
    )


def _misfits(partition: _Partition, partitions: Mapping[str, _Partition], plan: LaunchPlan) -> Iterator[str]:
    """Why the job can never run in that partition."""
    count, where = plan.node_count + plan.spare_count, f"partition {partition.name}"
    if partition.nodes is not None and count > partition.nodes:
        yield f"nodes: {count} are asked for, and {where} has {partition.nodes}"
    elif not plan.by_count and partition.names:
        absent = {node.name for node in plan.nodes} - partition.names
        nowhere = absent.difference(*(one.names for one in partitions.values()))
        if nowhere:
            yield f"nodes: this cluster has no {fold(nowhere)}; {where} has {fold(partition.names)}"
        if elsewhere := absent - nowhere:
            yield f"nodes: {fold(elsewhere)} is not in {where}, which has {fold(partition.names)}"
    if option_value(plan.slurm, "qos") is not None:
        return
    if partition.nodes and partition.most_nodes < count <= partition.nodes:
        yield f"nodes: {count} are asked for, and {where} allows {partition.most_nodes:.0f} a job"
    time = option_value(plan.slurm, "time") or ""
    if time_limit_s(time) > (time_limit_s(partition.longest) or math.inf):
        yield f"slurm.time: {time} is more than {where} allows: {partition.longest}"


def _unknown_to_the_accounts(run: RunCommand, plan: LaunchPlan) -> list[str]:
    """What accounting does not know and slurmctld would refuse for it; nothing where nobody keeps accounts."""
    given = {field: option_value(plan.slurm, field) for field in _ENFORCED}
    if not any(given.values()):
        return []
    config = run(["scontrol", "show", "config"]).stdout
    enforced = re.search(r"^AccountingStorageEnforce\s*=\s*(\S+)", config, re.MULTILINE)
    wrong = []
    for field, word in _ENFORCED.items():
        name = given[field]
        if not name or enforced is None or word not in enforced[1].split(","):
            continue
        column = "name" if field == "qos" else "account"
        done = run(["sacctmgr", "--noheader", "--parsable2", "show", field, f"format={column}"])
        known = done.stdout.split()
        if done.returncode == 0 and known and name.lower() not in map(str.lower, known):
            wrong.append(_unknown(field, name, known))
    return wrong


def _unknown(field: str, name: str, known: Sequence[str]) -> str:
    choice = f"{did_you_mean(name, known)}allowed: {', '.join(sorted(known)[:_SHOWN])}"
    return f"slurm.{field}: {name} is not known to this cluster; {choice}"
