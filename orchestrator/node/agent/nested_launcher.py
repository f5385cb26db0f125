"""Find launchers that do not fit the launch: torchrun in every rank, or a launcher per node that leaves out the other nodes."""

from __future__ import annotations

import os
import time

from orchestrator.node.ranks.rank_launchers import (
    MASTERS,
    SEPARATE,
    THROUGH_TORCHRUN,
    find_launcher,
    is_own_host,
    launcher_of,
    lone_option,
    node_count_of,
    option_of,
    per_node_command,
)
from orchestrator.node.run.ownership import proc_strings
from orchestrator.node.system.processes import descendants, session_members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from orchestrator.node.run.job import Job

FIRST_S, LAST_S = 0.5, 60.0  # after the start of the ranks; a launcher that is started later belongs to the program
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
GROWTH = 1.3  # each time is this much later than the previous one, as a search lists all processes: some ms


class LauncherSearch:
    """Searches what the ranks have started some 18 times in the first minute."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_needed = sum(job.ranks) > 1
        self.started_s = time.monotonic()
        self.master = ""  # the address of rank 0 that orch has chosen
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

    def hand_started(self, ranks: Collection[int]) -> str:
        """The numbers in RANK of the processes that every rank (pids), a shell, has started as ranks; empty if a rank has started none."""
        if len(ranks) < len(self.job.rank_numbers) or not all(map(is_shell, ranks)):
            return ""
        parents = {pid: stat[1] for pid, stat in session_members().items()}
        started: dict[int, set[int]] = {pid: set() for pid in ranks}
        for pid in parents:
            number = variables_of(pid).get("RANK", "")
            for shell in ancestors(pid, parents) & started.keys():
                started[shell].update([int(number)] if number.isdecimal() else [])
        least = min(started.values(), key=len)
        return ", ".join(map(str, sorted(least))) if len(least) > 1 else ""

    def master_on_own_host(self) -> str:
        """
        The loopback address at which a launcher or rank of this node looks for rank 0, which is on another host; empty if there is none.

        Not where orch has chosen such an address itself: then all nodes are on one host.
        """
        if self.job.node_rank == 0 or not self.master or is_own_host(self.master):
            return ""
        for pid in descendants():
            argv, variables = proc_strings(pid, "cmdline"), variables_of(pid)
            master = option_of(argv, MASTERS) if find_launcher(argv) is not None and not lone_option(argv) else None
            size = variables.get("WORLD_SIZE", "")
            if not is_own_host(master) and size.isdecimal() and int(size) > len(self.job.rank_numbers):
                master = variables.get("MASTER_ADDR")
            if is_own_host(master):
                return str(master)
        return ""

    def misused_launcher(self, pid: int) -> str | None:
        """The launcher that the process is; None if it is none, or starts one of the nodes of the run, which have one rank each."""
        argv = proc_strings(pid, "cmdline")
        launcher = launcher_of(argv)
        if launcher is None or launcher.startswith(THROUGH_TORCHRUN):
            return None
        is_one_per_node = max(self.job.ranks) == 1 and node_count_of(argv) == str(len(self.job.ranks))
        return None if is_one_per_node else launcher

    def is_lone_world(self) -> bool:
        """True if a rank that the program has started is in a world of this node's ranks alone, although there are more nodes."""
        size = str(len(self.job.rank_numbers))
        lone = {f"WORLD_SIZE={size}", f"LOCAL_WORLD_SIZE={size}"}
        variables = (proc_strings(pid, "environ") for pid in descendants()) if len(self.job.ranks) > 1 else ()
        return any(lone.issubset(found) and f"{SEPARATE}=1" not in found for found in variables)


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    """The process and its ancestors among those of `parents`."""
    found = set()
    while pid in parents and pid not in found:
        found.add(pid)
        pid = parents[pid]
    return found


def variables_of(pid: int) -> dict[str, str]:
    """The variables with which a process was started; empty if it has ended."""
    return dict(text.split("=", 1) for text in proc_strings(pid, "environ") if "=" in text)


def is_shell(pid: int) -> bool:
    return os.path.basename((proc_strings(pid, "cmdline") or [""])[0]) in SHELLS


def hand_started_message(job: Job, numbers: str) -> str:
    command = per_node_command("submit" if job.slurm else "ssh-launch", job.typed_words)
    return (
        f"each of the {sum(job.ranks)} ranks has started the ranks {numbers} itself; "
        f"start the program once per node instead: {command}"
    )


def own_host_message(job: Job, master: str) -> str:
    """The cause of the run's end, as the ranks of this node would wait for ever."""
    return (
        f"{job.node} looks for rank 0 at {master}, which is {job.node} itself, but rank 0 is on another node; "
        "use the address in MASTER_ADDR, which orch has set"
    )


def nested_launcher_message(job: Job, launcher: str) -> str:
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
