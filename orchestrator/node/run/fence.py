"""
The fence between two attempts of a Slurm job: ranks of the earlier one may still run where a node is cut off from Slurm.

Slurm starts the job again elsewhere when a node does not answer, and cannot end the processes there, which may reach the shared storage. So
each agent watches a file in its node folder, in which a later attempt writes before it starts, and kills its ranks then.
"""

from __future__ import annotations

import os
import time

from orchestrator.node.run.events import read_history
from orchestrator.node.run.polled_file import PolledFile
from orchestrator.node.run.run_folder import attempt_folder, node_folders

FENCE = "fence"  # in the node folder
ANSWER_S = 5.0  # within which a living agent begins to kill its ranks
END_S = 30.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List


class Fence:
    """The fence of this node, for its agent."""

    def __init__(self, folder: str) -> None:
        self._file = PolledFile(folder, FENCE)

    def is_closed(self) -> bool:
        """Return whether a later attempt has begun; False while the storage is away, where nothing can be written, either."""
        return bool(self._file.content())


def close_fences(run_dir: str, attempt: int) -> List[str]:
    """
    Have the agents of earlier attempts kill their ranks, if they still run; return the nodes where ranks may be left.

    An agent that does not react is dead, or cut off from the storage as well.
    """
    attempts = [attempt_folder(run_dir, number) for number in range(1, attempt)]
    folders = [folder for path in attempts for _, folder in node_folders({"attempt_dir": path, "nodes": None})]
    stops = {}
    for folder in folders:
        history = read_history(folder)
        if history.has_started and history.finished is None and os.path.exists(os.path.join(folder, FENCE)):
            stops[folder] = len(history.stops_s)
            with open(os.path.join(folder, FENCE), "a", encoding="ascii") as file:
                file.write(f"attempt {attempt}\n")
    begun_s = time.monotonic()
    while stops:
        time.sleep(0.2)
        waited_s = time.monotonic() - begun_s
        for folder in list(stops):
            history = read_history(folder)
            is_dead = len(history.stops_s) == stops[folder] and waited_s > ANSWER_S
            if history.finished is not None or is_dead:
                del stops[folder]
        if waited_s > END_S:
            break
    return [os.path.basename(folder) for folder in stops]
