"""Request that the ranks of an attempt save and end, as `orch stop --save` does; the agents ask them."""

from __future__ import annotations

from orchestrator.node.protocol.operations import REQUEST_SAVE, answers
from orchestrator.node.run.run_folder import node_folders
from orchestrator.node.run.save_request import request_save as write_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    from orchestrator.node.protocol.agents import SaveReply, SaveRequestBody


@answers(REQUEST_SAVE)
def request_save(request: SaveRequestBody, _payload: bytes) -> Tuple[SaveReply, bytes]:
    """Write the request for each node; a second one changes nothing."""
    requested = [node for node, folder in node_folders(request) if write_request(folder, request["grace_s"])]
    return {"nodes": requested}, b""
