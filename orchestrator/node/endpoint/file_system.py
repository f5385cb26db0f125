"""The type of the file system that a folder is on."""

from __future__ import annotations

import os

from orchestrator.node.system.files import absolute_path
from orchestrator.node.system.mounts import LOCAL, MOUNTINFO, mount_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    from orchestrator.node.protocol import messages


def file_system(request: messages.FileSystemRequest, _payload: bytes) -> Tuple[messages.FileSystemReply, bytes]:
    """The type of the file system that a path is on, and whether it is local."""
    with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
        _, _, kind, _ = mount_of(os.path.realpath(absolute_path(request["path"])), file.read())
    return {"type": kind, "local": kind in LOCAL}, b""
