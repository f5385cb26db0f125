"""The type of the file system that a folder is on, from the kernel's mount table."""

from __future__ import annotations

import os

from orchestrator.node.files import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    from orchestrator.node import messages

# On a disk or in the memory of one machine, which may still export it. File systems of other types may be remote.
LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)


def file_system(request: messages.FileSystemRequest, _payload: bytes) -> Tuple[messages.FileSystemReply, bytes]:
    """The type of the file system that a path is on, and whether it is local."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        kind = type_of(os.path.realpath(absolute_path(request["path"])), file.read())
    return {"type": kind, "local": kind in LOCAL}, b""


def type_of(path: str, mountinfo: str) -> str:
    """
    The file system type of the innermost mount point above the path; of several mounts at one point, the last one is on top.

    `mountinfo` is the text of /proc/self/mountinfo (man 5 proc).
    """
    longest, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount_point = unescaped(before.split(" ")[4])
        if len(mount_point) >= longest and os.path.commonpath((mount_point, path)) == mount_point:
            longest, kind = len(mount_point), after.split(" ")[0]
    return kind


def unescaped(text: str) -> str:
    """Decode blanks, newlines and backslashes, which the kernel writes as three octal digits."""
    for char in " \t\n\\":
        text = text.replace(f"\\{ord(char):03o}", char)
    return text
