"""The type of the file system that a folder of this machine is on, by the kernel's table of mounts."""

from __future__ import annotations

import os

from orchestrator.node.files import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple

    from orchestrator.node import protocol

    Json = Dict[str, Any]

# On a disk or in the memory of one machine, which may still export it to others. Any other type may be remote.
LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)


def file_system(request: protocol.FileSystemRequest, _payload: bytes) -> Tuple[protocol.FileSystemReply, bytes]:
    """The type of the file system that a path is on, and whether that is this machine's own."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        kind = type_of(os.path.realpath(absolute_path(request["path"])), file.read())
    return {"type": kind, "local": kind in LOCAL}, b""


def type_of(path: str, mountinfo: str) -> str:
    """By the text of /proc/self/mountinfo (man 5 proc): of mounts at the same place, the last one is on top."""
    longest, found = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        where = unescaped(before.split(" ")[4])
        if len(where) >= longest and os.path.commonpath((where, path)) == where:
            longest, found = len(where), after.split(" ")[0]
    return found


def unescaped(text: str) -> str:
    """The kernel writes blanks, newlines and backslashes as three octal digits."""
    for char in " \t\n\\":
        text = text.replace(f"\\{ord(char):03o}", char)
    return text
