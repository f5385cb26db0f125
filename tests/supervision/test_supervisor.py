"""The supervisor's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.store import RunFolder


@pytest.mark.processes
def test_second_supervisor_of_a_run_ends_with_4_and_names_the_first(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "orchestrator.supervision.supervisor", str(tmp_path)]
    with RunFolder(tmp_path).supervision() as is_ours:
        assert is_ours
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 4
    assert "has a supervisor: pid" in done.stderr
