"""Cgroups with a limit of memory, in which the kernel's OOM killer ends processes. Root only."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.until import until

CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A cgroup beside those of this process, whose counts no other test reads."""

    folder: Path
    limit: Path

    @property
    def enter(self) -> str:
        """The line of shell by which the shell, and so all that it starts, enters the cgroup."""
        return f"echo $$ > {self.folder}/cgroup.procs"

    def restrict(self, size: int) -> None:
        """Limit the memory, in bytes."""
        self.limit.write_text(str(size), "ascii")


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """
    Make a cgroup, which is removed once its processes have ended.

    Raises:
        OSError: this machine permits none.
    """
    parent, limit = _parent()
    folder = parent / f"orch-test-{os.getpid()}-{secrets.token_hex(2)}"
    folder.mkdir()
    try:
        yield MemoryGroup(folder, folder / limit)
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text("ascii"), awaited="the processes of the cgroup to end")
        folder.rmdir()


def _parent() -> tuple[Path, str]:
    """The highest cgroup in which one with a limit of memory can be made, and the name of the file of the limit."""
    if (CGROUPS / "memory/memory.limit_in_bytes").exists():  # version 1
        return CGROUPS / "memory", "memory.limit_in_bytes"
    control = CGROUPS / "cgroup.subtree_control"
    if control.exists() and "memory" in control.read_text("ascii").split():
        return CGROUPS, "memory.max"
    raise OSError("no cgroup gives limits of memory to those below it")
