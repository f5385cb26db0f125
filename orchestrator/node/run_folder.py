"""The layout of a run's folder: one folder per attempt, one folder per node in it."""

from __future__ import annotations

import os
import re

from orchestrator.node.files import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    from orchestrator.node.protocol import NodeFolders


ATTEMPT = "attempt-"
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-\d{8}-\d{6}-[0-9a-f]{4}\Z")


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
    """The number of the last attempt in a run's folder; None if there is none."""
    try:
        numbers = [name[len(ATTEMPT) :] for name in os.listdir(run) if name.startswith(ATTEMPT)]
    except FileNotFoundError:
        return None
    return max((int(number) for number in numbers if number.isdigit()), default=None)
