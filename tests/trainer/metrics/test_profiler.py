"""Traces of chosen steps and memory snapshots, in files that only the user can read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.metrics.profiler import StepProfiler, files_of, watch_memory
from trainer.runtime.accelerators import Cuda
from trainer.runtime.group import Group
from trainer.runtime.init import initialise


@pytest.fixture
def group() -> Group:
    return initialise("cpu", 60.0, {})


def _train(profiler: StepProfiler, steps: range) -> None:
    for step in steps:
        profiler.before_step(step)
        torch.ones(step, 7).sum()
        profiler.after_step(step)


@pytest.mark.parametrize(
    ("words", "steps", "profiled"), [("profile=2:3", range(1, 6), {2, 3}), ("profile=2:9", range(4, 6), {4, 5})]
)
def test_chosen_steps_are_in_one_private_trace_also_after_a_resume_and_at_the_end(
    tmp_path: Path, group: Group, capsys: pytest.CaptureFixture[str], words: str, steps: range, profiled: set[int]
) -> None:
    _train(StepProfiler(group, load_config(words=["steps=5", words]), tmp_path), steps)
    (path,) = (tmp_path / "profile").iterdir()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert f"the trace of the profiler is in {path}" in capsys.readouterr().out
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    shapes = [event["args"]["Input Dims"][0] for event in events if event["name"] == "aten::sum"]
    assert {rows for rows, _ in shapes} == profiled


def test_other_ranks_and_trainings_without_profile_record_nothing(tmp_path: Path, group: Group) -> None:
    _train(StepProfiler(group, load_config(words=["profile=1:2", "profile_ranks=1,2"]), tmp_path), range(1, 3))
    _train(StepProfiler(group, load_config(), tmp_path), range(1, 3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["profile=3", "profile=0:2", "profile=5:4", "profile=a:b", "profile_ranks=one"])
def test_wrong_profile_is_refused(word: str) -> None:
    with pytest.raises(UserError, match=word.replace("=", "=.*") + ".*allowed: "):
        load_config(words=[word])


def test_trace_that_cannot_be_written_is_a_warning(
    tmp_path: Path, group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile").touch()
    _train(StepProfiler(group, load_config(words=["profile=1:1"]), tmp_path), range(1, 2))
    assert "WARNING: the trace of the profiler is not written: " in capsys.readouterr().out


def test_files_are_in_the_nodes_folder_under_orch(tmp_path: Path, group: Group) -> None:
    launched = replace(group, rank=replace(group.rank, progress_dir=tmp_path / "attempt-1" / "n0" / "progress"))
    assert files_of(launched, tmp_path / "out") == tmp_path / "attempt-1" / "n0" / "profile"


def test_snapshot_is_written_once_when_the_memory_of_a_card_is_exhausted(
    tmp_path: Path, group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    """A double of torch.cuda; torch calls the observer with the device and three sizes."""
    observers: list[Callable[..., None]] = []
    memory = SimpleNamespace(_dump_snapshot=lambda path: Path(path).write_text("blocks"))
    cuda = SimpleNamespace(memory=memory)
    fake: Any = SimpleNamespace(
        cuda=cuda,
        distributed=torch.distributed,
        nn=torch.nn,
        _C=SimpleNamespace(_cuda_attach_out_of_memory_observer=observers.append),
    )
    watch_memory(replace(group, accelerator=Cuda(fake)), tmp_path)
    for _ in range(2):
        observers[0](0, 1 << 30, 1 << 34, 0)
    (path,) = (tmp_path / "profile").iterdir()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("blocks", 0o600)
    assert capsys.readouterr().out == f"the memory snapshot is in {path}\n"


def test_cpu_has_no_snapshot(tmp_path: Path, group: Group) -> None:
    watch_memory(group, tmp_path)
    assert list(tmp_path.iterdir()) == []
