"""The limits of CPU time of the cgroups of a process, from files as both versions of cgroups have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.runtime.cpu_limits import limit_periods, limited_share

LIMITED = "nr_periods 40\nnr_throttled 10\nthrottled_usec 5\n"
UNLIMITED = "usage_usec 7\nuser_usec 5\n"


@pytest.mark.parametrize(
    ("cgroups", "limited"),
    [
        ("0::/job/step\n", "job"),
        ("0::/job/step\n", "job/step"),
        ("0::/\n", ""),
        ("5:cpu,cpuacct:/job\n2:memory:/x\n0::/\n", "cpu/job"),
        ("5:cpu,cpuacct:/docker/not-seen-here\n0::/\n", "cpu"),
    ],
)
def test_limit_of_a_process_is_that_of_any_cgroup_above_it(tmp_path: Path, cgroups: str, limited: str) -> None:
    (tmp_path / "self").write_text(cgroups)
    root = tmp_path / "mounted"
    for folder in (root, root / "job/step", root / "job", root / "cpu/job", root / "cpu"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.stat").write_text(UNLIMITED)
    (root / limited / "cpu.stat").write_text(LIMITED)
    found = limit_periods(str(tmp_path / "self"), str(root))
    assert set(found.values()) == {(40, 10)}


def test_share_is_that_of_the_limit_that_is_reached_most_often() -> None:
    before = {"a": (100, 50), "b": (10, 0), "c": (5, 0)}
    assert limited_share(before, {"a": (200, 60), "b": (20, 5), "c": (5, 0), "new": (9, 9)}) == 0.5
    assert limited_share(before, {"c": (5, 0), "new": (9, 9)}) is None
    assert limit_periods("/nonexistent") == {}
