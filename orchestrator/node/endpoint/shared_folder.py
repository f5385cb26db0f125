"""Find out whether nodes share a folder: by its file system, and by a small file that one node writes and all others look for."""

from __future__ import annotations

import os

from orchestrator.node.protocol.operations import FILE_SYSTEM, FIND_MARKER, REMOVE_MARKER, WRITE_MARKER, answers
from orchestrator.node.system.files import absolute_path
from orchestrator.node.system.mounts import LOCAL, MOUNTINFO, mount_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    from orchestrator.node.protocol.connection import (
        Empty,
        FileSystemReply,
        FileSystemRequest,
        FindMarkerReply,
        MarkerRequest,
        WriteMarkerReply,
        WriteMarkerRequest,
    )

PREFIX = ".orch-marker-"


@answers(FILE_SYSTEM)
def file_system(request: FileSystemRequest, _payload: bytes) -> Tuple[FileSystemReply, bytes]:
    """The type of the file system that a path is on, and whether it is local."""
    with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
        _, _, kind, _ = mount_of(os.path.realpath(absolute_path(request["path"])), file.read())
    return {"type": kind, "local": kind in LOCAL}, b""


@answers(WRITE_MARKER)
def write_marker(request: WriteMarkerRequest, _payload: bytes) -> Tuple[WriteMarkerReply, bytes]:
    """Write the token to a new file in the folder, or in the nearest one above it that exists; return the file's path."""
    folder = absolute_path(request["folder"])
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    path = os.path.join(folder, f"{PREFIX}{os.urandom(8).hex()}")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, request["token"].encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return {"path": path}, b""


@answers(FIND_MARKER)
def find_marker(request: MarkerRequest, _payload: bytes) -> Tuple[FindMarkerReply, bytes]:
    """Return the token in the file; an OSError if this node does not see it."""
    with open(request["path"], encoding="utf-8") as file:
        return {"token": file.read(64)}, b""


@answers(REMOVE_MARKER)
def remove_marker(request: MarkerRequest, _payload: bytes) -> Tuple[Empty, bytes]:
    if os.path.basename(request["path"]).startswith(PREFIX):
        os.unlink(request["path"])
    return {}, b""
