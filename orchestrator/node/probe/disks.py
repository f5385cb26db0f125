"""File systems of the folders that a run uses: size, mount, type, whether it can be written, and whether other nodes see the same one."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

    from orchestrator.node.facts import Disk
    from orchestrator.node.probe.source import Source

    Mount = Tuple[str, str, str, str]  # point, root, type, source


# On a disk or in the memory of this machine. All others may be on several.
LOCAL = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs")
)


def disk(source: Source, use: str, path: str) -> Disk:
    """The file system of a folder, or of the nearest one above it that exists."""
    path = os.path.normpath(os.path.expanduser(path))
    folder = nearest(source, path)
    real = os.path.realpath(source.path(folder))
    mount = mount_of(source, real if source.root == "/" else folder)
    size = os.statvfs(real)
    return {
        "use": use,
        "path": path,
        "mount": mount[0] if mount else "",
        "type": mount[2] if mount else "",
        "identity": identity(source, os.stat(real), mount),
        "total": size.f_blocks * size.f_frsize,
        "free": size.f_bavail * size.f_frsize,
        "inodes_free": size.f_favail if size.f_files else None,  # some file systems have no number of inodes
        "writable": is_writable(real),
    }


def nearest(source: Source, path: str) -> str:
    while path != "/" and not source.exists(path):
        path = os.path.dirname(path)
    return path


def identity(source: Source, state: os.stat_result, mount: Optional[Mount]) -> str:
    """
    The name of the file system and of the folder in it.

    Two names of one server make two identities: equal ones are proof that nodes share the folder, different ones are none
    that they do not.
    """
    if mount is None or mount[2] in LOCAL:
        boot = source.text("/proc/sys/kernel/random/boot_id") or ""
        return f"local:{boot}:{state.st_dev}:{state.st_ino}"
    _, root, kind, device = mount
    return f"{kind}:{device}:{root}:{state.st_ino}"


def is_writable(folder: str) -> Optional[bool]:
    """Write and remove a file; None if the disk is full, which the free space reports."""
    import errno  # noqa: PLC0415  only this function needs it

    file = os.path.join(folder, f".orch-probe-{os.urandom(6).hex()}")
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return None if error.errno in (errno.ENOSPC, errno.EDQUOT) else False
    try:
        os.write(descriptor, b"orch\n")
        os.fsync(descriptor)
    except OSError as error:
        return None if error.errno in (errno.ENOSPC, errno.EDQUOT) else False
    finally:
        os.close(descriptor)
        os.unlink(file)
    return True


def mount_of(source: Source, path: str) -> Optional[Mount]:
    """The innermost mount above a path; of several at one point, the last one is on top (man 5 proc, mountinfo)."""
    found: Optional[Mount] = None
    for line in (source.text("/proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or len(rest) < 2:  # noqa: PLR2004  man 5 proc
            continue
        point = unescaped(fields[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and (found is None or len(point) >= len(found[0])):
            found = (point, unescaped(fields[3]), rest[0], unescaped(rest[1]))
    return found


def unescaped(text: str) -> str:
    """Decode blanks, newlines and backslashes, which the kernel writes as three octal digits."""
    for char in " \t\n\\":
        text = text.replace(f"\\{ord(char):03o}", char)
    return text
