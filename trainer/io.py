"""Atomic replacement of small text files, and files and folders that appear when they are whole. No torch here."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Iterator

LFS_POINTER = b"version https://git-lfs"  # how the file begins that Git LFS leaves instead of a large one
LFS_REMEDY = "a pointer of Git LFS instead of the file, which `git lfs pull` brings"


def replace_text(path: Path, text: str) -> None:
    """Write a whole file: readers see the old text or the new one, never a part. Folder mode 0700, file mode 0600."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with os.fdopen(
        os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)
    temporary.replace(path)


@contextlib.contextmanager
def appearing_whole(target: Path) -> Iterator[Path]:
    """
    A path for a new file or folder, which gets its name `target` after the block. The folders above it are made.

    What is there is removed if the block fails, also by Ctrl-C.
    """
    if not target.parent.exists():  # a file there is an error below, with its reason
        target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        temporary.replace(target)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(str(temporary), ignore_errors=True)
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def is_lfs_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER
