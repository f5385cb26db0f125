"""
The folders that all ranks on one file system share: the code of a run, in which they run, and one for files of the program.

A kept folder (`keep:` in the inventory) outlives the runs of a program: it is below the workdir, in the folder `kept`, which nothing
removes, and a link in the code folder leads to it.
"""

from __future__ import annotations

import fcntl
import os

from orchestrator.node.system.files import make_parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence


CODE = "code"
BLOCK_BYTES = 1 << 20
FICLONE = 0x40049409  # of linux/fs.h
SHARED = "shared"  # exists only if all nodes of the run see it


def make_code_folder(run_dir: str, bundle_dir: str) -> str:
    """
    Return the run's code folder; copy it from the bundle if it is missing, atomically, whoever else does so.

    One per run and file system, not per node or attempt: a relative path is the same file for all ranks and attempts.
    """
    folder, source = os.path.join(run_dir, CODE), os.path.join(bundle_dir, CODE)
    if os.path.isdir(folder):
        return folder
    fresh = f"{folder}.new-{os.urandom(8).hex()}"
    try:
        if os.path.isdir(source):
            copy_folder(source, fresh)
        else:
            os.mkdir(fresh)
        os.rename(fresh, folder)
    except OSError as error:
        import shutil  # slow to import, as are its functions that copy

        shutil.rmtree(fresh, ignore_errors=True)
        if not os.path.isdir(folder):  # another machine was not faster
            raise OSError(error.errno, f"the code cannot be copied: {error.strerror}", folder) from error
    return folder


def copy_folder(source: str, target: str) -> None:
    """Copy a folder of files, folders and links, with modes and times."""
    os.mkdir(target)
    with os.scandir(source) as entries:
        for entry in entries:
            path, state = os.path.join(target, entry.name), entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), path)
            elif entry.is_dir():
                copy_folder(entry.path, path)
            else:
                copy_file(entry.path, path)
                os.chmod(path, state.st_mode & 0o777)
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns), follow_symlinks=False)


def copy_file(source: str, target: str) -> None:
    """
    Copy the content of a file; on Btrfs and XFS the copy shares the blocks until one of the two is written to.

    Never a second name of the file: a program may append to its copy.
    """
    with open(source, "rb") as reader, open(target, "xb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
        except OSError:  # other file systems, and copies to another one
            while block := reader.read(BLOCK_BYTES):
                writer.write(block)


def make_shared_folder(run_dir: str) -> None:
    os.makedirs(os.path.join(run_dir, SHARED), mode=0o700, exist_ok=True)


def shared_folder(run_dir: str) -> str | None:
    """The folder of the run that all ranks see; None if the nodes share no file system."""
    folder = os.path.join(run_dir, SHARED)
    return folder if os.path.isdir(folder) else None


KEPT = "kept"  # in the workdir


def link_kept(workdir: str, folder: str, cwd: str, paths: Sequence[str]) -> List[str]:
    """
    Link each path, relative to the working folder of the ranks, to the same path in `folder`, which is made below the workdir.

    All nodes of a file system do this, at the same time and in each attempt.

    Returns:
        The paths at which the program has put something else in the meantime.
    """
    make_parents(os.path.realpath(workdir), os.path.join(os.path.realpath(workdir), os.path.relpath(folder, workdir)))
    replaced = []
    for path in paths:
        target, link = os.path.join(folder, path), os.path.join(cwd, path)
        os.makedirs(target, 0o700, exist_ok=True)  # the user may have made it a link, to a larger disk
        os.makedirs(os.path.dirname(link), exist_ok=True)
        try:
            os.symlink(target, link)
        except FileExistsError:
            if os.path.realpath(link) != os.path.realpath(target):
                replaced.append(path)
    return replaced
