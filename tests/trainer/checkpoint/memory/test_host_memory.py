"""The memory that a process may use: the smallest of what the system and its cgroups leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.checkpoint.memory.host_memory import available_memory

GB = 1 << 30


def _group(folder: Path, *, limit: str, names: tuple[str, str] = ("memory.max", "memory.current"), freed: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{3 * GB}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{freed} {GB}\n")


VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


@pytest.mark.parametrize(
    ("cgroup", "groups", "expected"),
    [
        ("0::/", {}, 16),
        ("0::/user/job", {"user/job": "max", "user": str(8 * GB)}, 6),
        ("0::/user/job", {"user/job": str(4 * GB), "user": str(8 * GB)}, 2),
        ("0::/outside", {"": str(5 * GB)}, 3),  # a container without a namespace of cgroups
        ("0::/user/job", {"user/job": str(99 * GB), "other": str(4 * GB)}, 16),
        ("3:cpu:/x\n4:memory:/user/job\n0::/", {"memory/user/job": str(7 * GB), "memory": str(1 << 63)}, 5),
    ],
)
def test_smallest_limit_of_system_and_cgroups_counts(
    tmp_path: Path, cgroup: str, groups: dict[str, str], expected: int
) -> None:
    """Pages of files that can be freed do not count as used."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {16 * GB // 1024} kB\n")
    (tmp_path / "self" / "cgroup").write_text(f"{cgroup}\n")
    for name, limit in groups.items():
        if name.startswith("memory"):
            _group(tmp_path / "groups" / name, limit=limit, names=VERSION_1, freed="total_inactive_file")
        else:
            _group(tmp_path / "groups" / name, limit=limit, freed="inactive_file")
    assert available_memory(tmp_path, tmp_path / "groups") == expected * GB


def test_memory_of_this_machine_is_known() -> None:
    assert available_memory() > 0
