"""An agent's end: the files that report finished work, the states in memory, and the folders that the program leaves."""

from __future__ import annotations

import os

from orchestrator.node.run.code_folder import CODE, shared_folder
from orchestrator.node.run.events import State
from orchestrator.node.run.memory_folder import memory_folder, remove_memory
from orchestrator.node.run.run_folder import HEAD_DONE
from orchestrator.node.system.files import write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Tuple

    from orchestrator.node.agent.termination import Outcome
    from orchestrator.node.run.events import EventLog
    from orchestrator.node.run.job import Job

MOST_FILES = 5000  # that are looked at: a hint is not worth more than a tenth of a second


def report_done(job: Job, folder: str, events: EventLog) -> None:
    """Write the file DONE, and under --until-head that of the attempt; a disk that the ranks have filled may prevent it."""
    done = {"time": events.clock.now(), "ranks": list(job.rank_numbers)}
    try:
        write_json(os.path.join(folder, "DONE"), done)
        if job.program.get("until_head") and job.node_rank == 0:
            write_json(os.path.join(os.path.dirname(folder), HEAD_DONE), done)
    except OSError as error:  # the last event has the outcome, too
        events.write_message(f"the file DONE was not written: {error}")


def settle_memory(job: Job, folder: str, outcome: Outcome, events: EventLog) -> None:
    """Remove the states that the ranks have kept in the memory of this node, unless another attempt may use them."""
    memory = memory_folder(job.run_id, job.node)
    # Ranks are stopped also because another node has failed: then another attempt may follow.
    is_last = job.slurm is not None and job.slurm.get("max_retries") == 0
    if outcome.state in (State.DONE, State.REQUEUE) or outcome.no_retry or is_last:
        problem = remove_memory(memory)
        if problem:
            events.write_message(f"the memory of this run was not removed: {problem}")
    elif job.slurm is not None and os.path.isdir(memory):
        try:
            write_json(os.path.join(folder, "memory-kept"), {"folder": memory})
        except OSError as error:  # such as a full disk, which may be why the ranks failed
            events.write_message(f"the batch script will not remove the memory of this run: {error}")


def left_folders(job: Job, cwd: str) -> Dict[str, int]:
    """
    The folders that a program of the user leaves in the run's code folder, which the next run does not see, and their bytes.

    Of nodes that share it, one reports them.
    """
    is_trainer = job.program["pythonpath"] == ""  # it has `out`
    if is_trainer or (job.node_rank and shared_folder(job.run_dir)):
        return {}
    try:
        return new_folders(cwd, os.path.join(job.bundle_dir, CODE, job.program["cwd"] or ""))
    except OSError:  # the program removes files meanwhile
        return {}


def new_folders(cwd: str, sent: str) -> Dict[str, int]:
    """
    The folders with files that `sent`, the same folder of the bundle, does not have; and the bytes of these files, at least.

    Without hidden folders, byte code, and links, such as to folders that are kept (`keep:` in the inventory).
    """
    with os.scandir(cwd) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and is_shown(entry.name)]
    left, remaining = {}, MOST_FILES
    for name in sorted(names, key=lambda name: os.path.isdir(os.path.join(sent, name))):  # new folders first
        size, count = new_files(os.path.join(cwd, name), os.path.join(sent, name), remaining)
        remaining -= count
        if size is not None:
            left[name] = size
    return left


def is_shown(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__"


def new_files(folder: str, sent: str, most: int) -> Tuple[int | None, int]:
    """The bytes of the new files among the first ones in a folder, None if there are none; and the number of files looked at."""
    size, count = None, 0
    for root, folders, files in os.walk(folder):
        folders[:] = filter(is_shown, folders)
        original = os.path.join(sent, os.path.relpath(root, folder))
        for name in files[: most - count]:
            path = os.path.join(root, name)
            count += 1
            if not os.path.lexists(os.path.join(original, name)) and not os.path.islink(path):
                size = (size or 0) + os.path.getsize(path)
    return size, count
