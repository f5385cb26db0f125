"""SIGKILL of a process that writes checkpoints costs none of them, at whatever moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.processes


def _killed_writers(*words: object) -> dict[str, int]:
    argv = [sys.executable, "-m", "tests.grounds.killed_writers", *map(str, words)]
    done = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.extended
def test_200_kills_at_random_moments_leave_a_verified_checkpoint_and_lose_none(tmp_path: Path) -> None:
    found = _killed_writers("moments", tmp_path, 200, 7)
    assert found["kills"] == 200
    assert found["half_written"] > 20  # or the kills did not hit the saves
    assert found["saved"] > 100


def test_kill_before_each_call_of_a_save_leaves_a_verified_checkpoint_and_loses_none(tmp_path: Path) -> None:
    found = _killed_writers("calls", tmp_path)
    assert found["kills"] > 20
    assert found["kills_of_shards"] > 20
