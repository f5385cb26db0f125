"""Under Slurm the agent of the first node finds ranks that train separately, by the files of all nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.node.agent.separate_watch import EVERY_S, SeparateWatch
from orchestrator.node.run.job import Job


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _watch(folder: Path, clock: Clock, **slurm: object) -> SeparateWatch:
    fields = {"args": ["trl", "sft"], "python": False, "per_node": True}
    job = Job(
        node="n0", node_rank=0, run_id="r", attempt=1, run_dir="", bundle_dir="", nodes=None, addresses=[], ranks=[1, 1],
        program=fields, grace_s=1.0, slurm=slurm,
    )  # fmt: skip
    return SeparateWatch(job, str(folder / "n0"), clock)


def _report(folder: Path, node: str, *, group: object, step: int = 3) -> None:
    progress = folder / node / "progress"
    progress.mkdir(parents=True, exist_ok=True)
    (progress / "0.json").write_text(json.dumps({"step": step, "time": 1.0, "group": group}))


def _looks(watch: SeparateWatch, clock: Clock, count: int) -> Sequence[str]:
    messages = []
    for _ in range(count):
        clock.now_s += EVERY_S
        messages.append(watch.message())
    return messages


def test_separate_trainings_are_found_by_two_looks(tmp_path: Path) -> None:
    clock = Clock()
    watch = _watch(tmp_path, clock)
    for node in ("n0", "n1"):
        _report(tmp_path, node, group=[0, 1])
    assert watch.message() == ""  # it is not time
    first, second = _looks(watch, clock, 2)
    assert first == ""
    assert second.startswith("2 trainings, not one")
    assert "`orch submit … --per-node -- bash -c 'trl sft --multi_gpu" in second


@pytest.mark.parametrize("group", [[0, 2], None, "x"])
def test_ranks_that_are_joined_or_report_no_group_are_not_watched_further(tmp_path: Path, group: object) -> None:
    clock = Clock()
    watch = _watch(tmp_path, clock)
    _report(tmp_path, "n0", group=group)
    assert _looks(watch, clock, 1) == [""]
    for node in ("n0", "n1"):
        _report(tmp_path, node, group=[0, 1])
    assert _looks(watch, clock, 3) == ["", "", ""]


def test_ranks_without_steps_are_awaited_and_unshared_files_prove_nothing(tmp_path: Path) -> None:
    clock = Clock()
    watch, unshared = _watch(tmp_path, clock), _watch(tmp_path, clock, shared=False)
    _report(tmp_path, "n0", group=[0, 1], step=1)
    assert _looks(watch, clock, 2) == ["", ""]
    for node in ("n0", "n1"):
        _report(tmp_path, node, group=[0, 1])
    assert _looks(unshared, clock, 2) == ["", ""]
    assert _looks(watch, clock, 2)[1] != ""
