"""The processes that the kernel kills for lack of memory: on the machine, and in the cgroup of a run. Needs no permission."""

from __future__ import annotations

import os

from orchestrator.node.system.machine import PROC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from orchestrator.node.run.agent_files import AgentBody

CGROUPS = "/sys/fs/cgroup"


def oom_kills() -> Optional[int]:
    """How many processes the kernel has killed for lack of memory since it started, in cgroups too; None before Linux 4.13."""
    return _count(f"{PROC}/vmstat")


def memory_cgroup() -> Optional[str]:
    """The folder of the cgroup that limits the memory of this process; None if there is none to be read."""
    try:
        with open(f"{PROC}/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            groups = dict(line.rstrip("\n").split(":", 2)[1:] for line in file)
    except (OSError, ValueError):
        return None
    for names, path in groups.items():
        if "memory" in names.split(","):  # version 1
            return _existing(f"{CGROUPS}/memory", path)
    return _existing(CGROUPS, groups[""]) if "" in groups else None


def _existing(root: str, path: str) -> Optional[str]:
    """The folder of a cgroup; in a container, which may see its own one as the root, that root."""
    return next(filter(os.path.isdir, (os.path.normpath(f"{root}/{path}"), root)), None)


def kills_in(folder: str) -> Optional[int]:
    """How many processes of a cgroup and those below it the kernel has killed for lack of memory; None if that is not known."""
    events = _count(os.path.join(folder, "memory.events"))  # version 2: with those below it, also if they were removed
    if events is not None:
        return events
    # The root of version 1 has all processes of the machine: kills there need not be of the run. That of version 2 has no counts.
    if (
        os.path.exists(os.path.join(folder, "release_agent"))
        or _count(os.path.join(folder, "memory.oom_control")) is None
    ):
        return None
    counts = [_count(os.path.join(below, "memory.oom_control")) for below, _, _ in os.walk(folder)]
    return sum(count for count in counts if count is not None)


def kills_of_run(agent: AgentBody) -> Optional[int]:
    """How many processes of the agent's cgroup, and so of the run, were killed since its start; None if that is not known."""
    folder, before = agent.get("memory_cgroup"), agent.get("cgroup_oom_kills")
    now = None if folder is None else kills_in(folder)
    return None if before is None or now is None else max(0, now - before)


def _count(file: str) -> Optional[int]:
    try:
        with open(file, encoding="ascii") as opened:
            counts = dict(line.split() for line in opened)
    except (OSError, ValueError):
        return None
    return int(counts["oom_kill"]) if "oom_kill" in counts else None
