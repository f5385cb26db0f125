"""The living runs of this user that hold cards of this machine, launched from here or from any other machine."""

from __future__ import annotations

import contextlib
import os
import time

from orchestrator.node.protocol.operations import HOLDERS, answers
from orchestrator.node.run.ownership import agent_owner, user_processes
from orchestrator.node.run.run_folder import AGENT_RECORD, attempt_folder
from orchestrator.node.system.files import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Tuple

    from orchestrator.node.protocol.connection import Empty
    from orchestrator.node.protocol.runs import HolderBody, HoldersReply
    from orchestrator.node.run.agent_files import Json
    from orchestrator.node.run.ownership import Owner


@answers(HOLDERS)
def holders(_request: Empty, _payload: bytes) -> Tuple[HoldersReply, bytes]:
    """
    The runs whose agents this endpoint sees and which hold cards.

    On a node that is no container, these are also the agents in its containers; in a container only those in it.
    """
    found: Dict[Tuple[str, str], HolderBody] = {}  # by run and node: an agent and its guard are one
    for pid in user_processes():
        owner = agent_owner(pid)
        holder = None if owner is None else holder_of(pid, owner)
        if holder is not None:
            found[holder["run"], holder["node"]] = holder
    return {"holders": list(found.values())}, b""


def holder_of(pid: int, owner: Owner) -> Optional[HolderBody]:
    """The run of an agent; None if it uses no cards, or its record cannot be read."""
    run, attempt, node, folder = owner
    file = os.path.join(attempt_folder(folder, int(attempt)), node, AGENT_RECORD)
    record: Optional[Json] = None
    with contextlib.suppress(OSError):  # another namespace, or it has just ended
        record = read_json(f"/proc/{pid}/root{file}")  # as the agent sees it, which may be in a container
    cards = None if record is None else record.get("cards")
    if record is None or cards is None:
        return None
    age_s = max(0.0, time.time() - record["started"])
    return {"run": run, "node": node, "age_s": age_s, "ranks": len(record["ranks"]), "cards": cards}
