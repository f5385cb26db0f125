"""The folder of the records of runs, and of all else that orch keeps for the user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def home(environ: Mapping[str, str]) -> Path:
    """$ORCH_HOME, else ~/.orch; it need not exist."""
    return Path(environ.get("ORCH_HOME") or Path.home() / ".orch").expanduser().absolute()
