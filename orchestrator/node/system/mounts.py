"""The file system that a path is on, from the kernel's mount table."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    Mount = Tuple[str, str, str, str]  # mount point, mounted folder of the file system, type, and device or server

MOUNTINFO = "/proc/self/mountinfo"
# On a disk or in the memory of one machine, which may still export it. File systems of other types may be remote.
LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)
POINT, ROOT = 4, 3  # fields before the separator
NO_MOUNT: Mount = ("", "", "", "")


def mount_of(path: str, mountinfo: str) -> Mount:
    """
    The innermost mount above the path; of several at one mount point, the last one is on top.

    `mountinfo` is the text of MOUNTINFO (man 5 proc).
    """
    found = NO_MOUNT
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) <= POINT or len(rest) <= 1:  # type and source
            continue
        point = unescaped(fields[POINT])
        if len(point) >= len(found[0]) and os.path.commonpath((point, path)) == point:
            found = (point, unescaped(fields[ROOT]), rest[0], unescaped(rest[1]))
    return found


def unescaped(text: str) -> str:
    """Decode blanks, newlines and backslashes, which the kernel writes as three octal digits."""
    for char in " \t\n\\":
        text = text.replace(f"\\{ord(char):03o}", char)
    return text
