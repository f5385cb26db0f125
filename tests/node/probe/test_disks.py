"""The test write of the probe in a folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.probe import checkpoints
from orchestrator.node.probe.disks import disk, is_writable
from orchestrator.node.probe.source import Source
from tests.paths import ROOT

KILLED_WHILE_WRITING = """
import resource, signal, sys
from orchestrator.node.probe.disks import is_writable
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
is_writable(sys.argv[1])
"""


def test_a_folder_is_written_to_and_left_empty(tmp_path: Path) -> None:
    assert is_writable(str(tmp_path)) is True
    assert list(tmp_path.iterdir()) == []
    assert is_writable(str(tmp_path / "none")) is False


@pytest.mark.parametrize(("use", "parent"), [("out", ""), ("workdir", "runs/demo-20261122-101500-00aa/checkpoints")])
def test_newest_checkpoint_has_its_size(tmp_path: Path, use: str, parent: str) -> None:
    earlier = tmp_path / "runs" / "zeta-20251122-101500-00aa" / "checkpoints"
    for step, size in (("step_9", 10), ("step_10", 5), ("step_11.tmp-4711", 99)):
        (tmp_path / parent / step / "ranks").mkdir(parents=True)
        (tmp_path / parent / step / "ranks" / "state.pt").write_bytes(b"x" * size)
    (earlier / "step_99").mkdir(parents=True)
    assert disk(Source(), use, str(tmp_path))["checkpoint"] == 5
    assert disk(Source(), use, str(tmp_path / "none"))["checkpoint"] is None


@pytest.mark.processes
def test_a_probe_that_is_killed_while_it_writes_leaves_no_file(tmp_path: Path) -> None:
    argv = [sys.executable, "-S", "-c", KILLED_WHILE_WRITING, str(tmp_path)]
    assert subprocess.run(argv, cwd=ROOT, check=False).returncode == -signal.SIGXFSZ
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_that_is_not_scanned_in_time_has_no_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step_2").mkdir()
    (tmp_path / "step_2" / "model").write_bytes(b"12345")
    assert disk(Source(), "out", str(tmp_path))["checkpoint"] == 5
    monkeypatch.setattr(checkpoints, "SCAN_S", 0.0)
    assert disk(Source(), "out", str(tmp_path))["checkpoint"] is None
