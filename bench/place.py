"""Where the benchmarks run: a folder, an environment and the programs that are compared."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.processes import CommandFailed

BIN = Path(sys.executable).parent
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""For clush, which is a program of Python: in a pipe it would keep its lines in a buffer of 8 KiB."""
_KEPT = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "USER")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for this benchmark alone; `env` is what all commands get, and nothing besides."""

    folder: Path
    env: Mapping[str, str]

    @classmethod
    def at(cls, folder: Path) -> Place:
        """No variable of the caller's that one contestant heeds and another does not: PYTHON*, TORCH*, PDSH_*, SSH_*."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return cls(folder, {**kept, "ORCH_HOME": str(folder / "orch-home"), "NO_COLOR": "1"})

    @property
    def orch(self) -> Path:
        """The command as users have it."""
        return BIN / "orch"


def installed(name: str) -> str:
    """Path of a program that Debian has; CommandFailed where it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise CommandFailed(f"{name} is not installed")
    return path
