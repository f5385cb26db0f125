"""The folder and environment of a benchmark, and the programs that it compares."""

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
"""For clush, a Python program, which buffers 8 KiB when its output is a pipe."""
_INHERITED = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "USER")


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder for one benchmark; `env` is the whole environment of every command."""

    folder: Path
    env: Mapping[str, str]

    @classmethod
    def at(cls, folder: Path) -> Workspace:
        """A workspace whose environment has no variable that only some contestants read: PYTHON*, TORCH*, PDSH_*, SSH_*."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return cls(folder, {**inherited, "ORCH_HOME": str(folder / "orch-home"), "NO_COLOR": "1"})

    @property
    def orch(self) -> Path:
        """The `orch` command of this environment."""
        return BIN / "orch"


def installed(name: str) -> str:
    """Return the path of a program; raise CommandFailed if it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise CommandFailed(f"{name} is not installed")
    return path
