"""File systems that only one thread of the tests has mounted, to be filled or made read-only. Root only."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.grounds.components import program

R = TypeVar("R")
_CLONE_NEWNS = 0x00020000


def in_own_mounts(act: Callable[[], R]) -> R:
    """Call a function in a thread that has its own mount namespace, which ends with it; return its result."""

    def isolated() -> R:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        _mount("--make-rprivate", "/")
        return act()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(isolated).result()


def mount(folder: Path, *, size: str) -> None:
    """Mount an empty tmpfs on the folder."""
    _mount("-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder))


def make_read_only(folder: Path) -> None:
    """Let no path below the folder be written any more; files that are open stay writable."""
    _mount("--bind", str(folder), str(folder))
    _mount("-o", "remount,bind,ro", str(folder))


def fill(folder: Path) -> None:
    """Use up the file system of the folder."""
    found = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes(found.f_bavail * found.f_frsize))


def _mount(*words: str) -> None:
    subprocess.run([program("mount"), *words], check=True)
