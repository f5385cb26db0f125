"""The memory that this process may still use on its machine: of the system, and of the cgroups that it is in. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a cgroup, version 2 and 1: the limit, the usage, and the key in memory.stat of the memory that is freed without swapping."""


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """The bytes that can be used without swapping. What a process writes to /dev/shm counts against the limit of that cgroup."""
    values = dict(line.split(":", 1) for line in (proc / "meminfo").read_text(encoding="ascii").splitlines())
    of_system = int(values["MemAvailable"].split()[0]) * 1024
    return min([of_system, *(left for folder in _folders(proc, cgroups) for left in _left_in(folder))])


def _folders(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The cgroups that limit this process. A container may see its own one as the root, under the path outside."""
    for line in (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, names, path = line.split(":", 2)
        if names in ("", "memory"):
            root = cgroups / names
            group = root / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if root in (folder, *folder.parents))


def _left_in(folder: Path) -> Iterator[int]:
    """The memory that is left of the limit of a cgroup; nothing if it has none."""
    for limit, usage, freed in FILES:
        if not (folder / limit).exists():
            continue
        text = (folder / limit).read_text(encoding="ascii").strip()
        values = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        if text != "max":
            yield int(text) - int((folder / usage).read_text(encoding="ascii")) + int(values.get(freed, 0))
