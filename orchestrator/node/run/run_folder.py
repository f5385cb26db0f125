"""The layout of a run's folder: one folder per attempt, in it one folder per node, and in that the agent's record."""

from __future__ import annotations

import os

from orchestrator.node.system.files import absolute_path, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

    from orchestrator.node.run.agent_files import AgentBody, NodeFolders
    from orchestrator.node.system.files import Json

ATTEMPT = "attempt-"
ATTEMPT_BEGINS = "orch: attempt-{} begins"  # in the log of a Slurm job, which all its attempts share
AGENT_RECORD = "agent.json"
AGENT_LOG = "agent.log"  # stdout and stderr of the agent and its guard
STANDBY_RECORD = "standby.json"  # in the folder of an attempt: the guard of the next one, until it is started
NETWORK_REPORT = "network.json"  # the network that NCCL took, once the agent knows it
HEAD_DONE = "head-done"  # in the folder of an attempt: the program of the first node is done
HANG_REPORT = "hang.json"  # the positions of ranks that make no progress
CARDS_REPORT = "cards.json"  # the agent's last sample of the cards


def attempt_folder(run: str, number: int) -> str:
    return os.path.join(run, f"{ATTEMPT}{number}")


def attempt_number(name: str) -> Optional[int]:
    """The number in the name of an attempt's folder; None if the name is another one."""
    number = name[len(ATTEMPT) :] if name.startswith(ATTEMPT) else ""
    return int(number) if number.isdecimal() else None


def process_name(rank: Optional[int]) -> str:
    """The name of a process that the agent started, for messages; `rank` is None for a program that starts the node's ranks."""
    return "the program" if rank is None else f"rank {rank}"


def output_stem(rank: Optional[int]) -> str:
    """The stem of the files with the output of that process: `rank-3`, or `program`."""
    return "program" if rank is None else f"rank-{rank}"


def progress_file(folder: str, rank: int) -> str:
    return os.path.join(folder, "progress", f"{rank}.json")


def ranks_with_progress(folder: str) -> List[int]:
    try:
        names = os.listdir(os.path.join(folder, "progress"))
    except FileNotFoundError:
        return []
    stems = [name[: -len(".json")] for name in names if name.endswith(".json")]
    return [int(stem) for stem in stems if stem.isdecimal()]


def started_ranks(folder: str, planned: Sequence[int]) -> Sequence[int]:
    """
    The ranks that the program of a node has started: the planned ones, unless others have reported their progress.

    A launcher with a dynamic rendezvous, as torchrun's c10d, may number the nodes in another order.
    """
    reported = set(ranks_with_progress(folder))
    return planned if reported.issubset(planned) else sorted(reported)


def read_progress(folder: str) -> Dict[int, Json]:
    """The content of the progress files in a node folder, by rank."""
    found = {rank: read_json(progress_file(folder, rank)) for rank in ranks_with_progress(folder)}
    return {rank: report for rank, report in found.items() if report is not None}


def read_agent(folder: str) -> Optional[AgentBody]:
    """The record of the agent in a node folder; None if there is none."""
    return read_json(os.path.join(folder, AGENT_RECORD))  # type: ignore[return-value]  # it may hold any object


def node_folders(request: NodeFolders) -> List[Tuple[str, str]]:
    """Name and folder of each requested node, or of all nodes in the attempt folder if `nodes` is None, in that order."""
    attempt, nodes = absolute_path(request["attempt_dir"]), request["nodes"]
    if nodes is None:
        try:
            with os.scandir(attempt) as entries:
                nodes = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            nodes = []
    for node in nodes:
        if "/" in node or node in ("", ".", ".."):
            raise ValueError(f"{node!r} is not a node name")
    return [(node, os.path.join(attempt, node)) for node in nodes]


def newest_attempt(run: str) -> Optional[int]:
    try:
        numbers = [attempt_number(name) for name in os.listdir(run)]
    except FileNotFoundError:
        return None
    return max((number for number in numbers if number is not None), default=None)
