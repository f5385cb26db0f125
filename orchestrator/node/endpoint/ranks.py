"""Ask the ranks of this node where they are."""

from __future__ import annotations

from orchestrator.node.ranks.rank_channel import rank_bodies
from orchestrator.node.run.run_folder import node_folders, read_agent, started_ranks
from orchestrator.node.system.machine import is_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Tuple

    from orchestrator.node.protocol import messages
    from orchestrator.node.run.agent_files import NodeFolders, RankBody


def ranks(request: NodeFolders, _payload: bytes) -> Tuple[messages.RanksReply, bytes]:
    """Ask all ranks of agents that run on this machine."""
    nodes: Dict[str, Dict[int, RankBody]] = {}
    for node, folder in node_folders(request):
        agent = read_agent(folder)
        if agent is not None and is_alive(agent):
            nodes[node] = rank_bodies(folder, started_ranks(folder, agent["ranks"]))
    return {"nodes": nodes}, b""
