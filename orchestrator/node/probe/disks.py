"""
File systems of the folders that a run uses: size, mount, type, whether it can be written, and whether other nodes see the same one.

The size of the newest checkpoint in a folder is an estimate of the next one.
"""

from __future__ import annotations

import os
import re
import time

from orchestrator.node.system.files import absolute_path, working_folder_refusal
from orchestrator.node.system.mounts import LOCAL, MOUNTINFO, mount_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Optional

    from orchestrator.node.facts import Disk
    from orchestrator.node.probe.source import Source
    from orchestrator.node.system.mounts import Mount

WITH_CHECKPOINTS = ("workdir", "out")
# The names of the shared trainer, of Hugging Face and of DeepSpeed.
CHECKPOINT = re.compile(r"(?:step_|checkpoint-|global_step)([0-9]{1,12})\Z")
RUN_TIME = re.compile(r"-([0-9]{8}-[0-9]{6})-[0-9a-f]{4}\Z")  # in a run's id
SCAN_S = 1.0  # below DISK_S of collect.py: a checkpoint of thousands of files on a busy server is no fault of the disk
MOST_RUNS = 8  # that are looked at: a workdir may have thousands


def disk(source: Source, use: str, path: str) -> Disk:
    """The file system of a folder, or of the nearest one above it that exists."""
    path = absolute_path(path)
    folder = nearest(source, path)
    real = os.path.realpath(source.path(folder))
    mount = mount_of(real if source.root == "/" else folder, source.text(MOUNTINFO) or "")
    size = os.statvfs(real)
    return {
        "use": use,
        "path": path,
        "mount": mount[0],
        "type": mount[2],
        "identity": identity(source, os.stat(real), mount),
        "total": size.f_blocks * size.f_frsize,
        "free": size.f_bavail * size.f_frsize,
        "inodes_free": size.f_favail if size.f_files else None,  # some file systems have no number of inodes
        "writable": is_writable(real),
        "refused": (working_folder_refusal(source.path(path)) or None) if use == "workdir" else None,
        "checkpoint": newest_checkpoint_bytes(source, use, path) if use in WITH_CHECKPOINTS else None,
    }


def nearest(source: Source, path: str) -> str:
    while path != "/" and not source.exists(path):
        path = os.path.dirname(path)
    return path


def identity(source: Source, state: os.stat_result, mount: Mount) -> str:
    """
    The name of the file system and of the folder in it.

    Two names of one server make two identities: equal ones are proof that nodes share the folder, different ones are none
    that they do not.
    """
    _, root, kind, device = mount
    if kind in LOCAL or not kind:
        boot = source.text("/proc/sys/kernel/random/boot_id") or ""
        return f"local:{boot}:{state.st_dev}:{state.st_ino}"
    return f"{kind}:{device}:{root}:{state.st_ino}"


def is_writable(folder: str) -> Optional[bool]:
    """
    Write to a file, which is removed before: nothing stays if the probe is killed in a server that hangs.

    None if the disk is full, which the free space reports, or if the file system cannot write to a removed file.
    """
    import errno  # only this function needs it

    file = os.path.join(folder, f".orch-probe-{os.urandom(6).hex()}")
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return None if error.errno in (errno.ENOSPC, errno.EDQUOT) else False
    try:
        os.unlink(file)
        os.write(descriptor, b"orch\n")
        os.fsync(descriptor)
    except OSError as error:
        return None if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ESTALE) else False
    finally:
        os.close(descriptor)
    return True


def newest_checkpoint_bytes(source: Source, use: str, path: str) -> Optional[int]:
    """The bytes of the newest checkpoint in a folder of checkpoints, or of the newest runs in a workdir; None if there is none, or not in time."""
    for folder in [path] if use == "out" else checkpoint_folders(source, path):
        found = ((CHECKPOINT.match(name), name) for name in source.names(folder))
        steps = {int(match.group(1)): name for match, name in found if match}
        if steps:
            try:
                return folder_bytes(source.path(f"{folder}/{steps[max(steps)]}"), time.monotonic() + SCAN_S)
            except OSError:  # TimeoutError is one; or the checkpoint has just been removed
                return None
    return None


def checkpoint_folders(source: Source, workdir: str) -> Iterator[str]:
    """The folders of checkpoints of a workdir's newest runs."""
    found = ((RUN_TIME.search(name), name) for name in source.names(f"{workdir}/runs"))
    newest = sorted(((match.group(1), name) for match, name in found if match), reverse=True)[:MOST_RUNS]
    return (f"{workdir}/runs/{name}/checkpoints" for _, name in newest)


def folder_bytes(folder: str, deadline: float) -> int:
    """The bytes of all files below a folder; TimeoutError at the deadline."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if time.monotonic() >= deadline:
                raise TimeoutError
            if entry.is_dir(follow_symlinks=False):
                total += folder_bytes(entry.path, deadline)
            else:
                total += entry.stat(follow_symlinks=False).st_size
    return total
