"""
Text as bytes, and which bytes each rank reads at each step.

A batch is a pure function of (seed, step, rank, accumulation index) and the text: a resumed run needs no sampler state
to go on, and host names, node counts and the order of arrival cannot change it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import random
import sysconfig
from pathlib import Path
from typing import List, Sequence

from trainer.errors import UserError


def load_text(paths: Sequence[str], context: int) -> bytes:
    """
    All bytes of the files, folders and globs, in order; of the standard library's top-level sources when there are none.

    Raises:
        UserError: nothing matches, a file cannot be read, or there is less text than one sample needs (context + 1).
    """
    text = b"".join(_read(path) for name in paths for path in _matching(name)) if paths else _standard_library()
    if len(text) < context + 1:
        names = ", ".join(paths) or "the standard library"
        raise UserError(
            f"data.paths: {names}: {len(text)} bytes of text, model.context={context} needs at least {context + 1}"
        )
    return text


def offsets(seed: int, step: int, rank: int, micro: int, *, count: int, text_bytes: int, context: int) -> list[int]:
    """Where the samples of one micro batch start; each is context + 1 bytes long."""
    name = f"{seed}/{step}/{rank}/{micro}".encode()
    draw = random.Random(int.from_bytes(hashlib.sha256(name).digest(), "big"))  # noqa: S311 -- sampling, not secrets
    return [draw.randrange(text_bytes - context) for _ in range(count)]


def digest(text: bytes) -> str:
    """Names the text; equal on all ranks when all nodes hold the same data."""
    return hashlib.sha256(text).hexdigest()


def _matching(name: str) -> list[Path]:
    """The files that one entry of data.paths stands for, in an order that does not depend on where they lie."""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        inside = [file for file in path.rglob("*") if file.is_file()]
        hidden = [file for file in inside if any(part.startswith(".") for part in file.relative_to(path).parts)]
        found = sorted(set(inside) - set(hidden))
        problem = "the folder holds no file"
    elif path.exists():
        return [path]
    else:
        found = [Path(one) for one in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(one)]
        problem = "no such file or folder"
    if not found:
        raise UserError(f"data.paths: {name}: {problem}")
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise UserError(f"data.paths: {path}: {exc.strerror}") from exc


def _standard_library() -> bytes:
    """Text that every node has. Build settings are left out: they hold paths of the machine that built Python."""
    sources: List[bytes] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        if path.name.startswith("_sysconfigdata") or not os.access(str(path), os.R_OK):
            continue
        sources.append(_read(path))
    return b"".join(sources)
