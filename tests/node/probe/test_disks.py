"""The test write of the probe in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node.endpoint.push import prepare
from orchestrator.node.probe import disks
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
    monkeypatch.setattr(disks, "SCAN_S", 0.0)
    assert disk(Source(), "out", str(tmp_path))["checkpoint"] is None


def _world_writable(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)


def _file(folder: Path) -> None:
    folder.write_text("")


def _below_a_file(folder: Path) -> None:
    folder.parent.rmdir()
    folder.parent.write_text("")


def _dangling_link(folder: Path) -> None:
    folder.symlink_to("nowhere")


def _runs_are_a_link(folder: Path) -> None:
    folder.mkdir()
    (folder / "runs").symlink_to("..")


def _bundles_of_another_user(folder: Path) -> None:
    (folder / "bundles").mkdir(parents=True)
    os.chown(folder / "bundles", 4711, 4711)


def _of_another_user(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, 4711, 4711)


def _good(folder: Path) -> None:
    (folder / "runs").mkdir(parents=True)
    folder.chmod(0o750)


def _missing(folder: Path) -> None:
    assert not folder.exists()


SITUATIONS = (
    *(_world_writable, _file, _below_a_file, _dangling_link, _runs_are_a_link),
    *(_bundles_of_another_user, _of_another_user, _good, _missing),
)


@pytest.mark.parametrize("make", SITUATIONS)
def test_a_check_refuses_the_workdirs_that_a_launch_refuses(tmp_path: Path, make: Callable[[Path], None]) -> None:
    workdir = tmp_path / "parent" / "work"
    workdir.parent.mkdir()
    if "another_user" in make.__name__ and os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    make(workdir)
    entry = disk(Source(), "workdir", str(workdir))
    refusal = entry["refused"] or ("it cannot be written" if entry["writable"] is False else "")
    try:
        prepare({"workdir": str(workdir), "digest": "0a", "bytes_more": 0, "bytes_unpacked": 0}, b"")
    except OSError as error:
        reason = str(error)
    else:
        reason = ""
    assert bool(refusal) == bool(reason), (refusal, reason)
    assert entry["refused"] in (reason, None), reason
