"""Ranks with an optimizer on the CPU divide the CPUs of their node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.parallel.deepspeed import cpu_adam
from trainer.parallel.deepspeed.cpu_adam import cpus_here, quotas, share, take_share_of_cpus
from trainer.runtime.init import initialise


def rank(cpus: range, *, kernel: str = "a", quota: float | None = None) -> dict[str, Any]:
    return {"kernel": kernel, "cpus": list(cpus), "quota": quota}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(range(64))], [64]),
        ([rank(range(64))] * 8, [8] * 8),
        # Bound to the NUMA nodes of their cards, of unequal size.
        ([*[rank(range(32))] * 2, *[rank(range(32, 80))] * 2], [16, 16, 24, 24]),
        # One may use all CPUs, as with a launcher that binds the others only.
        ([rank(range(8)), rank(range(4))], [6, 2]),
        ([*[rank(range(8))] * 2, rank(range(8), kernel="b")], [4, 4, 8]),
        ([rank(range(2))] * 4, [1] * 4),
        ([rank(range(64), quota=12.0)] * 4, [3] * 4),
        ([rank(range(8), quota=64.0)] * 4, [2] * 4),
    ],
)
def test_every_cpu_is_divided_among_the_ranks_that_may_use_it(ranks: list[dict[str, Any]], expected: list[int]) -> None:
    assert [share(ranks, number) for number in range(len(ranks))] == expected


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_quota_of_any_group_above_counts(tmp_path: Path) -> None:
    assert list(quotas(str(tmp_path))) == []
    write(tmp_path, "proc/self/cgroup", "1:cpu:/old\n0::/job/step\n")
    write(tmp_path, "sys/fs/cgroup/job/step/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/job/cpu.max", "600000 100000\n")
    assert list(quotas(str(tmp_path))) == [6.0]
    write(tmp_path, "sys/fs/cgroup/cpu.max", "250000 100000\n")
    assert cpus_here(str(tmp_path)) == {"kernel": "", "cpus": sorted(os.sched_getaffinity(0)), "quota": 2.5}


def test_share_replaces_the_threads_that_a_launcher_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch's own OpenMP has read the variable long before; that of an extension reads it when it is loaded."""
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(cpu_adam, "cpus_here", lambda: rank(range(6)))
    env = {"OMP_NUM_THREADS": "1"}
    take_share_of_cpus(initialise("cpu", 60.0, {}), env)
    assert (env, given) == ({"OMP_NUM_THREADS": "6"}, [6])
    assert "offload_optimizer: 6 threads per rank, an equal share of the CPUs\n" in capsys.readouterr().out
