"""The steps that are saved, and training during an asynchronous save; one process, real files."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.grounds.checkpoints import Session
from trainer.checkpoint.format import files
from trainer.checkpoint.manager import Checkpoints, Snapshot, TrainState
from trainer.checkpoint.save import shared_memory
from trainer.checkpoint.saver import Saver
from trainer.errors import StorageError, TrainerError
from trainer.runtime.progress import Progress
from trainer.runtime.signals import Flag


@dataclass(frozen=True)
class Gated(Checkpoints):
    """Waits in each write until `gate` is set; sets `begun` when it waits."""

    gate: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)

    def write(self, snapshot: Snapshot) -> str:
        self.begun.set()
        assert self.gate.wait(30)
        return super().write(snapshot)


class Loop:
    """The training loop's use of a saver, step by step."""

    def __init__(self, out: Path, **config: object) -> None:
        self.session = Session.start(out, **{"save_steps": 2, "steps": 100, **config})
        checkpoints = self.session.checkpoints
        self.checkpoints = Gated(checkpoints.group, checkpoints.config, checkpoints.out, checkpoints.data_digest)
        self.progress = Progress(checkpoints.group.rank, 100)
        self.saver = Saver(self.checkpoints, self.session.strategy, self.progress, lambda: None)
        self.step = 0

    def train(self, steps: int = 1, *, last: bool = False, loss: float = 1.0) -> Flag:
        flags = Flag.NONE
        for _ in range(steps):
            self.step += 1
            self.session.train()
            flags = self.saver.poll(self.step)
            self.saver.add_loss(loss)
            self.saver.after_step(TrainState(self.step, 0, 9.0, loss), flags, {}, last=last)
        return flags

    @property
    def saved(self) -> list[str]:
        return [path.name for path in files.newest_first(self.checkpoints.out)]


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(tmp_path, async_save=True)
    yield loop
    loop.checkpoints.gate.set()


def _open(out: Path, **config: object) -> Loop:
    loop = Loop(out, **config)
    loop.checkpoints.gate.set()
    return loop


def test_async_save_writes_the_state_of_its_step_while_training_continues(loop: Loop, tmp_path: Path) -> None:
    reference = Session.start(tmp_path / "reference")
    for _ in range(2):
        reference.train()
    loop.train(2)
    assert loop.checkpoints.begun.wait(30)
    loop.train(5)
    assert loop.saved == []
    loop.checkpoints.gate.set()
    assert loop.saver.finish() == ""
    resumed = Session.start(tmp_path)
    assert resumed.resume() == TrainState(2, 0, 9.0, 1.0)
    assert resumed.weights() == reference.weights()
    found, expected = (session.strategy.optimizer.state_dict()["state"] for session in (resumed, reference))
    assert all(
        torch.equal(found[number][key], expected[number][key]) for number in expected for key in expected[number]
    )


def test_memory_of_the_last_snapshot_is_reused(tmp_path: Path) -> None:
    """Allocating fresh memory takes several times as long, and training is paused for that time."""
    loop = _open(tmp_path, async_save=True)
    loop.train(2)
    memory = loop.saver._snapshot_memory  # its address is visible nowhere else
    assert memory is not None
    first = shared_memory._address(memory._reserve(1))
    loop.saver.finish()
    loop.train(2)
    assert loop.saver._snapshot_memory is memory
    assert shared_memory._address(memory._reserve(1)) == first
    loop.saver.finish()
    weights = Session.start(tmp_path)
    assert weights.resume().step == 4
    assert weights.weights() == loop.session.weights()


def test_save_that_is_due_during_another_is_postponed(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    loop.train(5)
    assert "step 2 is still being written: the save at step 4 is put off until it is\n" in capsys.readouterr().out
    loop.checkpoints.gate.set()
    loop.saver._writing.save.problem()  # type: ignore[union-attr]  # the condition to wait on
    assert loop.train() == Flag.SAVE
    assert loop.train() in (Flag.NONE, Flag.POSTPONE)
    loop.saver.finish()
    assert loop.saved == ["step_6", "step_2"]


def test_step_is_reported_as_saved_only_after_the_save(loop: Loop) -> None:
    loop.train(3)
    assert "saved" not in loop.progress.extra
    loop.checkpoints.gate.set()
    loop.saver.finish()
    assert loop.progress.extra["saved"] == 2


@pytest.mark.parametrize("resumed", [0, 4])
def test_first_state_in_memory_is_reported_at_once_and_others_with_the_next_step(loop: Loop, resumed: int) -> None:
    """Without a report, orch does not restart the run; a write at each step would wait for the file system."""
    folder = loop.checkpoints.out / "progress"
    folder.mkdir()
    rank = replace(loop.progress.rank, progress_dir=folder)
    progress = Progress(rank, 100, in_background=True)
    progress.write("init", resumed, saved=resumed, resumed=resumed)
    progress.write("step", resumed + 1)
    memory: Any = SimpleNamespace(poll=lambda: Flag.NONE, kept=0)
    loop.saver.memory, loop.saver.progress = memory, progress
    for kept, reported in ((0, resumed), (resumed + 1, resumed + 1), (resumed + 2, resumed + 1)):
        memory.kept = kept
        loop.saver.poll(resumed + 3)
        assert json.loads((folder / f"{rank.global_rank}.json").read_text())["saved"] == reported
    assert progress.extra["saved"] == resumed + 2


def test_failed_save_is_reported_at_the_next_step_and_older_checkpoints_stay(tmp_path: Path) -> None:
    loop = _open(tmp_path, async_save=True)
    loop.train(2)
    loop.saver.finish()
    (tmp_path / "step_4").write_text("a file in the way")
    loop.train(2)
    loop.saver._writing.save.problem()  # type: ignore[union-attr]  # the condition to wait on
    with pytest.raises(TrainerError, match=r"cannot save .*step_4: ") as caught:
        loop.train()
    assert caught.value.exit_code == 1
    assert loop.saver.finish() == ""  # it is reported once
    assert Session.start(tmp_path).resume().step == 2


def test_failed_save_is_still_reported_if_another_error_ends_its_step(tmp_path: Path) -> None:
    """Such as a loss that is not finite, without a roll-back."""
    loop = _open(tmp_path, async_save=True)
    (tmp_path / "step_2").write_text("a file in the way")
    loop.train(2)
    loop.saver._writing.save.problem()  # type: ignore[union-attr]  # the condition to wait on
    assert loop.saver.poll(3) == Flag.SAVE_FAILED
    assert "cannot save " in loop.saver.finish()


def test_failure_of_the_save_before_the_last_one_is_reported_at_the_last(tmp_path: Path) -> None:
    loop = _open(tmp_path, async_save=True)
    (tmp_path / "step_2").write_text("a file in the way")
    loop.train(2)
    with pytest.raises(TrainerError, match=r"cannot save .*step_2: "):
        loop.train(last=True)


def test_last_save_waits_for_the_previous_save_and_for_its_own_end(loop: Loop) -> None:
    loop.train(2)
    threading.Timer(0.05, loop.checkpoints.gate.set).start()
    loop.train(last=True)
    assert loop.saved == ["step_3", "step_2"]
    assert loop.progress.extra["saved"] == 3


@pytest.mark.parametrize(("minutes", "saved"), [(1e-9, ["step_3", "step_2", "step_1"]), (60.0, [])])
def test_checkpoint_is_due_after_save_minutes(tmp_path: Path, minutes: float, saved: list[str]) -> None:
    loop = _open(tmp_path, save_steps=50, save_minutes=minutes)
    loop.train(3)
    assert loop.saved == saved


def test_milestone_is_due_between_two_saves(tmp_path: Path) -> None:
    loop = _open(tmp_path, save_steps=4, keep_every=3)
    loop.train(8)
    assert loop.saved == ["step_8", "step_6", "step_4", "step_3"]


def test_roll_back_raises_the_failure_of_a_pending_save(tmp_path: Path) -> None:
    loop = _open(tmp_path, async_save=True)
    (tmp_path / "step_2").write_text("a file in the way")
    loop.train(2)
    with pytest.raises(StorageError, match=r"cannot save .*step_2: "):
        loop.saver.before_roll_back()


def test_loss_of_a_checkpoint_is_the_mean_since_the_previous_one(tmp_path: Path) -> None:
    loop = _open(tmp_path)
    for loss in (1.0, 2.0, 5.0, 7.0):
        loop.train(loss=loss)
    means = [files.read_manifest(path, None)["mean_loss"] for path in files.newest_first(tmp_path)]
    assert means == [6.0, 1.5]


def test_only_rank_0_decides_and_writes(tmp_path: Path) -> None:
    loop = _open(tmp_path, async_save=True)
    group = loop.checkpoints.group
    second = replace(loop.checkpoints, group=replace(group, rank=replace(group.rank, global_rank=1, world_size=2)))
    saver = Saver(second, loop.session.strategy, loop.progress, lambda: None)
    assert saver.poll(2) == Flag.NONE
    saver.after_step(TrainState(2, 0, 1.0, 1.0), Flag.NONE, {}, last=False)
    assert saver.finish() == ""
    assert loop.saved == []
