"""The counts of processes that the kernel has killed for lack of memory, in both versions of cgroups."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.node.run import oom_kills
from orchestrator.node.run.oom_kills import kills_in, kills_of_run, memory_cgroup


@pytest.mark.parametrize(
    ("lines", "existing", "found"),
    [
        ("0::/user.slice/a.scope\n", "user.slice/a.scope", "user.slice/a.scope"),
        ("4:memory:/job_1\n3:cpu:/other\n0::/\n", "memory/job_1", "memory/job_1"),
        ("4:cpuset,memory:/job_1\n", "memory/job_1", "memory/job_1"),
        ("4:memory:/docker/abc\n", "memory", "memory"),  # a container that sees its own group as the root
        ("4:memory:/docker/abc\n", "", None),
        ("3:cpu:/other\n", "memory", None),
        ("nonsense\n", "memory", None),
    ],
)
def test_cgroup_of_this_process_is_found(
    lines: str, existing: str, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("proc/self", f"cgroup/{existing}"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(lines)
    monkeypatch.setattr(oom_kills, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(oom_kills, "CGROUPS", str(tmp_path / "cgroup"))
    assert memory_cgroup() == (None if found is None else str(tmp_path / "cgroup" / found))


def test_kills_below_a_cgroup_count_in_version_1_too(tmp_path: Path) -> None:
    assert kills_in(str(tmp_path)) is None
    (tmp_path / "below").mkdir()
    for folder, count in ((tmp_path, 1), (tmp_path / "below", 2)):
        (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")
    assert kills_in(str(tmp_path)) == 3
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 9\noom_kill 5\noom_group_kill 0\n")
    assert kills_in(str(tmp_path)) == 5  # version 2 counts them itself


def test_kills_in_the_root_are_not_known_to_be_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/memory.oom_control").write_text("oom_kill 2\n")
    assert kills_in(str(tmp_path)) is None, "the root of version 2 has no counts"
    (tmp_path / "memory.oom_control").write_text("oom_kill 1\n")
    assert kills_in(str(tmp_path)) == 3
    (tmp_path / "release_agent").write_text("\n")
    assert kills_in(str(tmp_path)) is None


def test_kills_of_a_run_are_those_since_its_start(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom_kill 5\n")
    agent: dict[str, object] = {"memory_cgroup": str(tmp_path), "cgroup_oom_kills": 3}
    cases: list[tuple[dict[str, object], int | None]] = [
        ({}, 2),
        ({"cgroup_oom_kills": None}, None),
        ({"memory_cgroup": str(tmp_path / "gone")}, None),
    ]
    assert [kills_of_run(cast("Any", {**agent, **changed})) for changed, _ in cases] == [kills for _, kills in cases]
    assert kills_of_run(cast("Any", {})) is None
