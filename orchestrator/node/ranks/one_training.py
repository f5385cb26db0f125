"""Find out by the progress of all ranks that they are not one training but several, which know nothing of each other."""

from __future__ import annotations

from orchestrator.node.ranks.rank_launchers import OPTIONS, SEPARATE, find_launcher, per_node_command
from orchestrator.node.run.run_folder import node_folders, read_progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Dict, List, Set, Tuple

    from orchestrator.node.run.job import Job

LEAST_STEPS = 3  # of each rank, while the run continues: a program may join its ranks after a first step
NAMED = 3  # nodes in a message
FRESH_S = 5.0  # a file that is older than the newest one of the node is left from ranks that torchrun has restarted


def separate_trainings(
    reports: Mapping[str, Mapping[int, Mapping[str, Any]]], ranks: int, *, is_per_node: bool, least_steps: int = 1
) -> str:
    """
    The proof that the ranks train separately; empty if there is none.

    Args:
        reports: node -> rank -> its progress, of all nodes; `group` is the rank's number in its process group and the group's size.
        ranks: the number of ranks that the launch has asked for.
    """
    groups = {node: groups_of(progress, least_steps) for node, progress in reports.items()}
    found = [group for of_node in groups.values() for group in of_node]
    if not all(groups.values()) or len(found) <= 1:
        return ""
    if all(size == 1 for _, size in found):
        if not is_per_node and len(found) < ranks:
            return ""
        return f"{len(found)} trainings, not one: each of {len(found)} ranks takes optimizer steps in no process group"
    nodes_of: Dict[Tuple[int, int], Set[str]] = {}
    for node, of_node in groups.items():
        for group in of_node:
            nodes_of.setdefault(group, set()).add(node)
    (rank, size), nodes = max(nodes_of.items(), key=lambda item: (len(item[1]), -item[0][0]))
    if len(nodes) == 1 or any(size == 1 for _, size in found):
        return ""
    names = " and ".join(sorted(nodes)) if len(nodes) <= NAMED else f"{len(nodes)} nodes"
    return f"{len(nodes)} trainings, not one: {names} each have a rank {rank} of {size}"


def proof_in_attempt(job: Job, folder: str, least_steps: int = 1) -> str:
    """The proof and the remedy, by the files of an attempt whose folder all nodes share; empty if there is none."""
    if job.program.get("until_head"):
        return ""
    reports = {node: read_progress(path) for node, path in node_folders({"attempt_dir": folder, "nodes": None})}
    if len(reports) < len(job.ranks):
        return ""
    proof = separate_trainings(reports, sum(job.ranks), is_per_node=job.is_per_node, least_steps=least_steps)
    return f"{proof}; {joining_remedy('submit', job.typed_words, is_per_node=job.is_per_node)}" if proof else ""


def groups_of(progress: Mapping[int, Mapping[str, Any]], least_steps: int) -> List[Tuple[int, int]]:
    """The number of each rank of a node in its group and the group's size, if it has taken as many steps."""
    newest_s = max(map(_time_s, progress.values()), default=0.0)
    found = []
    for report in progress.values():
        step = report.get("step")
        try:
            rank, size = map(int, report["group"])
        except (KeyError, TypeError, ValueError):  # of a program that does not report it, or not so
            continue
        is_left = size > 1 and _time_s(report) <= newest_s - FRESH_S
        if isinstance(step, int) and step >= least_steps and not is_left:
            found.append((rank, size))
    return found


def _time_s(report: Mapping[str, Any]) -> float:
    time_s = report.get("time")
    return float(time_s) if isinstance(time_s, (int, float)) else 0.0


def joining_remedy(command: str, words: Sequence[str], *, is_per_node: bool) -> str:
    """How the ranks become one training, with the line to type if that is known."""
    launcher = find_launcher(words)
    if is_per_node and launcher is not None and launcher.key in OPTIONS:
        remedy = f"one training: {per_node_command(command, words)}"
    elif is_per_node:
        remedy = "pass NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR and MASTER_PORT on to what starts the ranks"
    else:
        remedy = "join the ranks with torch.distributed.init_process_group(), as DistributedDataParallel needs it"
    return f'{remedy}; if they are meant to be separate, set {SEPARATE}: "1" in env'
