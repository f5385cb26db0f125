"""The folders of a run that all ranks on one file system share: the code, in which they run, and one for files of the program."""

from __future__ import annotations

import os

CODE = "code"
SHARED = "shared"  # exists only if all nodes of the run see it


def make_code_folder(run_dir: str, bundle_dir: str) -> str:
    """
    Return the run's code folder; copy it from the bundle if it is missing, atomically, whoever else does so.

    One per run and file system, not per node or attempt: a relative path is the same file for all ranks and attempts.
    """
    folder, source = os.path.join(run_dir, CODE), os.path.join(bundle_dir, CODE)
    if os.path.isdir(folder):
        return folder
    import shutil  # noqa: PLC0415  slow to import, and the folder usually exists

    fresh = f"{folder}.new-{os.urandom(8).hex()}"
    try:
        if os.path.isdir(source):
            shutil.copytree(source, fresh, symlinks=True)
        else:
            os.mkdir(fresh)
        os.rename(fresh, folder)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if not os.path.isdir(folder):  # another machine was not faster
            raise OSError(error.errno, f"the code cannot be copied: {reason_of(error)}", folder) from error
    return folder


def reason_of(error: OSError) -> str:
    """The reason of an OSError; of an error of copytree, the first of those that it collects."""
    if error.strerror:
        return error.strerror
    errors = error.args[0] if error.args else ""
    return str(errors[0][2]) if isinstance(errors, list) and errors else str(errors)


def make_shared_folder(run_dir: str) -> None:
    os.makedirs(os.path.join(run_dir, SHARED), mode=0o700, exist_ok=True)


def shared_folder(run_dir: str) -> str | None:
    """The folder of the run that all ranks see; None if the nodes share no file system."""
    folder = os.path.join(run_dir, SHARED)
    return folder if os.path.isdir(folder) else None
