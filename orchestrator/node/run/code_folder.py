"""The folders of a run that all ranks on one file system share: the code, in which they run, and one for files of the program."""

from __future__ import annotations

import fcntl
import os

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
