"""The environment in which a process finds the torch_gcu double of one generation, and the calls that the double recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.paths import ROOT

GENERATIONS = ("t20", "s60")


def environment(generation: str, calls: Path | None = None) -> dict[str, str]:
    """PYTHONPATH with the double on it (not for generation "none"), and the folder where it writes its calls."""
    folder = [] if generation == "none" else [str(ROOT / "tests" / "doubles" / generation)]
    recording = {"GCU_DOUBLE_CALLS": str(calls)} if calls else {}
    return {"PYTHONPATH": os.pathsep.join([*folder, str(ROOT)]), **recording}


def calls_of(calls: Path, rank: int) -> list[str]:
    return (calls / str(rank)).read_text().splitlines()


def try_each(statements: Sequence[tuple[str, str]]) -> list[str]:
    """Run each (generation, statement) and return the errors; see tests/doubles/try_each.py."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.doubles.try_each"],
        env={**os.environ, **environment("none"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        input=json.dumps(statements),
        check=True,
        capture_output=True,
        text=True,
        timeout=110,
    )
    errors: list[str] = json.loads(done.stdout)
    return errors
