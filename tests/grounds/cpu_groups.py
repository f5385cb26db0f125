"""A cgroup that throttles the CPUs of the processes in it. Root only."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from tests.grounds.memory_groups import CGROUPS
from tests.until import until

PERIOD_US = 10_000


class CpuGroup:
    """A cgroup without a limit at first."""

    def __init__(self, folder: Path, *, is_version_1: bool) -> None:
        self.folder = folder
        self._is_version_1 = is_version_1

    def throttle(self, pid: int, *, percent: int) -> None:
        """Move a process here, which gets that share of one CPU from now on."""
        quota_us = PERIOD_US * percent // 100
        if self._is_version_1:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US), "ascii")
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us), "ascii")
        else:
            (self.folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}", "ascii")
        (self.folder / "cgroup.procs").write_text(str(pid), "ascii")


@contextlib.contextmanager
def cpu_group() -> Iterator[CpuGroup]:
    """
    Make a cgroup, which is removed once its processes have ended.

    Raises:
        OSError: this machine permits none.
    """
    is_version_1 = (CGROUPS / "cpu/cpu.cfs_quota_us").exists()
    control = CGROUPS / "cgroup.subtree_control"
    if not is_version_1 and not (control.exists() and "cpu" in control.read_text("ascii").split()):
        raise OSError("no cgroup gives limits of CPU time to those below it")
    folder = (CGROUPS / "cpu" if is_version_1 else CGROUPS) / f"orch-test-{os.getpid()}-{secrets.token_hex(2)}"
    folder.mkdir()
    if is_version_1 and not (folder / "cpu.cfs_quota_us").exists():
        folder.rmdir()
        raise OSError("a cgroup has no limit of CPU time")
    try:
        yield CpuGroup(folder, is_version_1=is_version_1)
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text("ascii"), awaited="the processes of the cgroup to end")
        folder.rmdir()
