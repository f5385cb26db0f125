"""
The folder in the memory of a node where ranks keep states for the next attempt, as the shared trainer does (trainer/checkpoint/memory/states.py).

    /dev/shm/orch-<uid>-<run id>.<node>/

The agent names it for its ranks, which create it. The agent removes it when no other attempt can follow, the owner of the run when none
follows, and otherwise the next agent of any run, or `orch gc`.
"""

from __future__ import annotations

import os
import stat
import time

from orchestrator.node.run.ownership import runs_with_processes
from orchestrator.node.system.fast_stdlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Sequence, Set, Tuple

ROOT = "/dev/shm"  # noqa: S108  its owner and mode are checked
UNUSED_S = 3600.0  # between two attempts


def memory_folder(run_id: str, node: str) -> str:
    return os.path.join(ROOT, f"{prefix()}{run_id}.{node}")


def prefix() -> str:
    return f"orch-{os.geteuid()}-"


def remove_memory(path: str) -> str:
    """Remove the folder, if there is one; it has plain files only. Return why it is still there, or empty."""
    try:
        if not is_own_folder(path):
            return f"{path} is no folder of this user"
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    except FileNotFoundError:  # it is gone, or another process removes it
        return ""
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def is_own_folder(path: str) -> bool:
    state = os.lstat(path)
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def unused_folders(older_than_s: float) -> Iterator[Tuple[str, float, int]]:
    """Path, age and size of each folder that was not written for that time, and whose run has no living process here."""
    active: Set[str] | None = None
    try:
        names = [name for name in sorted(os.listdir(ROOT)) if name.startswith(prefix())]
    except OSError:  # there is no such file system
        return
    for name in names:
        path = os.path.join(ROOT, name)
        with suppress(FileNotFoundError, NotADirectoryError):
            if not is_own_folder(path):
                continue
            states = [os.lstat(path), *(os.lstat(os.path.join(path, file)) for file in os.listdir(path))]
            age_s = max(0.0, time.time() - max(state.st_mtime for state in states))
            if age_s < older_than_s:
                continue
            if active is None:
                active = runs_with_processes()
            if not any(name.startswith(f"{prefix()}{run}.") for run in active):
                yield path, age_s, sum(state.st_size for state in states[1:])


def remove_unused() -> Sequence[str]:
    """Remove the folders of runs whose agents could not remove them; return the problems."""
    return [problem for path, _, _ in list(unused_folders(UNUSED_S)) for problem in [remove_memory(path)] if problem]
