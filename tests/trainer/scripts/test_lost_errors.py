"""The error of a rank that was started by hand is noted, unless the rank is none of a process group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.processes

PROGRAM = """
import atexit, os, sys, types
import trainer.scripts.lost_errors as lost
lost.watch()
c10d = types.SimpleNamespace(init_process_group=lambda backend: None)
lost.watch_groups(c10d)
if {joins}:
    c10d.init_process_group("gloo")
{end}
"""


def _end(folder: Path, end: str, *, joins: bool = True, **more: str) -> object:
    """Run a program as rank 3 that ends so; return its noted error."""
    (folder / "attempt-1" / "n0" / "error").mkdir(parents=True, exist_ok=True)
    rank = {"RANK": "3", "PET_NNODES": "1", "ORCH_RUN_DIR": str(folder), "ORCH_ATTEMPT": "1", "ORCH_NODE": "n0"}
    env = {**os.environ, **rank, "PYTHONPATH": str(ROOT), **more}
    subprocess.run([sys.executable, "-c", PROGRAM.format(joins=joins, end=end)], env=env, check=False, timeout=60)
    return _note(folder).get("error")


def _note(folder: Path) -> dict[str, Any]:
    file = folder / "attempt-1" / "n0" / "error" / "lost-3.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("raise ValueError('bad')", "ValueError: bad"),
        ("sys.exit(2)", "exit code 2"),  # as a script that prints its errors itself, or the error of the rendezvous
        ("sys.exit('no data')", "no data"),
        ("sys.exit(0)", None),
        ("", None),
        ("lost.begin(); sys.exit(1)", "exit code 1"),
        ("lost.begin()", None),
    ],
)
def test_error_of_a_joined_rank_is_noted(tmp_path: Path, end: str, error: str | None) -> None:
    assert _end(tmp_path, end) == error
    assert _end(tmp_path, "") is None, "a later process of the rank has not failed"


def test_rank_that_a_signal_ends_leaves_the_note_of_its_first_step(tmp_path: Path) -> None:
    _end(tmp_path, "lost.begin(); os.kill(os.getpid(), 9)")
    assert _note(tmp_path) == {"rank": "3", "error": None}
    _end(tmp_path, "")
    assert _note(tmp_path) == {}
    _end(tmp_path, "lost.begin(); os.kill(os.getpid(), 9)", joins=False)
    assert _note(tmp_path) == {}


def test_error_of_a_process_that_joined_no_group_or_that_torchrun_watches_is_not_noted(tmp_path: Path) -> None:
    assert _end(tmp_path, "sys.exit(1)", joins=False) is None
    assert _end(tmp_path, "sys.exit(1)", TORCHELASTIC_RUN_ID="r") is None
