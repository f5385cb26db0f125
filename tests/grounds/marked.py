"""The processes of a run as /proc shows them: by their environment, and descendant its agents."""

from __future__ import annotations

from pathlib import Path

from orchestrator.node.run.ownership import agent_owner
from orchestrator.node.system.processes import stat_of
from tests.grounds.keeper import descendants

Process = tuple[int, int]
"""Pid and start time."""


def guards_of(run_id: str) -> dict[int, int]:
    """
    Pid of the guard -> pid of the agent, for the run's nodes on this machine, the oldest first.

    On each node the agent is older than what waits there for a restart, which has a guard, too. Pids start again from the lowest ones.
    """
    found = [pid for pid in _pids() if _is_agent(pid, run_id)]
    stats = {pid: stat for pid in found if (stat := stat_of(pid)) is not None}
    oldest_first = sorted(stats, key=lambda pid: stats[pid][2])
    return {stats[pid][1]: pid for pid in oldest_first if stats[pid][1] in stats}


def processes_of(run_id: str) -> set[Process]:
    """Processes with the run's id in their environment, its agents and guards, and all descendants of those."""
    variable = f"ORCH_RUN_ID={run_id}".encode()
    found = {pid for pid in _pids() if _is_agent(pid, run_id) or variable in _words(pid, "environ")}
    found |= {descendant for pid in found if _is_agent(pid, run_id) for descendant in descendants(pid)}
    return {(pid, stat[2]) for pid in found if (stat := stat_of(pid)) is not None and stat[0] not in "ZX"}


def still_alive(processes: set[Process]) -> set[Process]:
    """Those processes that have not ended."""
    stats = {process: stat_of(process[0]) for process in processes}
    return {p for p, stat in stats.items() if stat is not None and stat[2] == p[1] and stat[0] not in "ZX"}


def _is_agent(pid: int, run_id: str) -> bool:
    owner = agent_owner(pid)
    return owner is not None and owner[0] == run_id


def _words(pid: int, name: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
