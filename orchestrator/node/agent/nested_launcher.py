"""Find launchers that do not fit the launch: torchrun in every rank, or a launcher per node that leaves out the other nodes."""

from __future__ import annotations

import time

from orchestrator.node.processes import descendants, session_members
from orchestrator.node.rank_launchers import THROUGH_TORCHRUN, launcher_of, node_count_of, per_node_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from orchestrator.node.job import Job

FIRST_S, LAST_S = 0.5, 60.0  # after the start of the ranks; a launcher that is started later belongs to the program
GROWTH = 1.3  # each time is this much later than the previous one, as a search lists all processes: some ms


class LauncherSearch:
    """Searches what the ranks have started some 18 times in the first minute."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_needed = sum(job.ranks) > 1
        self.started_s = time.monotonic()
        self.next_s = FIRST_S

    def is_due(self) -> bool:
        """True if it is time for a search; the next one is due later."""
        if not self.is_needed or time.monotonic() - self.started_s < self.next_s:
            return False
        self.next_s *= GROWTH
        self.is_needed = self.next_s < LAST_S
        return True

    def found_in_ranks(self, ranks: Collection[int]) -> str | None:
        """The launcher that every one of the ranks (pids) is or has started, unless in another session; None if a rank has none."""
        if len(ranks) < len(self.job.rank_numbers):
            return None  # a rank has ended without one
        parents = {pid: stat[1] for pid, stat in session_members().items()}
        without, launcher = set(ranks), None
        for pid in parents:
            name = self.misused_launcher(pid)
            if name is not None:
                launcher = name
                without -= ancestors(pid, parents)
        return None if without else launcher

    def misused_launcher(self, pid: int) -> str | None:
        """The launcher that the process is; None if it is none, or starts one of the nodes of the run, which have one rank each."""
        argv = strings(f"/proc/{pid}/cmdline")
        launcher = launcher_of(argv)
        if launcher is None or launcher.startswith(THROUGH_TORCHRUN):
            return None
        is_one_per_node = max(self.job.ranks) == 1 and node_count_of(argv) == str(len(self.job.ranks))
        return None if is_one_per_node else launcher

    def is_lone_world(self) -> bool:
        """True if a rank that the program has started is in a world of this node's ranks alone, although there are more nodes."""
        size = str(len(self.job.rank_numbers))
        lone = {f"WORLD_SIZE={size}", f"LOCAL_WORLD_SIZE={size}"}
        return len(self.job.ranks) > 1 and any(lone.issubset(strings(f"/proc/{pid}/environ")) for pid in descendants())


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    """The process and its ancestors among those of `parents`."""
    found = set()
    while pid in parents and pid not in found:
        found.add(pid)
        pid = parents[pid]
    return found


def strings(path: str) -> list[str]:
    """The words of a process's command line, or its variables; empty if it has ended."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def nested_launcher_message(job: Job, launcher: str) -> str:
    """The cause of the run's end, and the command to use instead."""
    command = per_node_command("submit" if job.slurm else "ssh-launch", job.typed_words)
    return (
        f"each of the {sum(job.ranks)} ranks has started {launcher}, which starts ranks itself; "
        f"start the program once per node instead: {command}"
    )


def lone_world_message(job: Job) -> str:
    """The warning that the ranks of a node are in no group with the other nodes' ranks."""
    size, total = len(job.rank_numbers), sum(job.ranks)
    return (
        f"warning: the ranks on {job.node} train without the other nodes (WORLD_SIZE={size}, while the run has {total} ranks); "
        "for one world, their launcher needs NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT"
    )
