"""The folders of the program's own files in the working folder of the ranks, which the next run does not see."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Tuple

MOST_FILES = 5000  # that are looked at: a hint is not worth more than a tenth of a second


def left_folders(cwd: str, sent: str) -> Dict[str, int]:
    """
    The folders with files that `sent`, the same folder of the bundle, does not have; and the bytes of these files, at least.

    Without hidden folders, byte code, and links, such as to folders that are kept (`keep:` in the inventory).
    """
    with os.scandir(cwd) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and is_shown(entry.name)]
    left, remaining = {}, MOST_FILES
    for name in sorted(names, key=lambda name: os.path.isdir(os.path.join(sent, name))):  # new folders first
        size, count = new_files(os.path.join(cwd, name), os.path.join(sent, name), remaining)
        remaining -= count
        if size is not None:
            left[name] = size
    return left


def is_shown(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__"


def new_files(folder: str, sent: str, most: int) -> Tuple[int | None, int]:
    """The bytes of the new files among the first ones in a folder, None if there are none; and the number of files looked at."""
    size, count = None, 0
    for root, folders, files in os.walk(folder):
        folders[:] = filter(is_shown, folders)
        original = os.path.join(sent, os.path.relpath(root, folder))
        for name in files[: most - count]:
            path = os.path.join(root, name)
            count += 1
            if not os.path.lexists(os.path.join(original, name)) and not os.path.islink(path):
                size = (size or 0) + os.path.getsize(path)
    return size, count
