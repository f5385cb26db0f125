"""The files that a setting names: files, folders and globs. No torch here."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import List

from trainer.errors import UserError


def matching_files(name: str, key: str) -> List[Path]:
    """The files of one entry, in an order that does not depend on the folder's own order."""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        inside = [file for file in path.rglob("*") if file.is_file()]
        hidden = [file for file in inside if any(part.startswith(".") for part in file.relative_to(path).parts)]
        found = sorted(set(inside) - set(hidden))
        problem = "the folder holds no file"
    elif path.exists():
        return [path]
    else:
        found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(name)]
        problem = "no such file or folder"
    if not found:
        raise UserError(f"{key}: {name}: {problem}")
    return found
