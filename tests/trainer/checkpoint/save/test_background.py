"""Sharded saves in the background: real writer processes, which are stopped and killed; one rank."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.grounds.checkpoints import Session
from tests.until import until
from trainer.checkpoint.format import files
from trainer.checkpoint.manager import TrainState
from trainer.checkpoint.saver import Saver
from trainer.config.load import load_config
from trainer.errors import StorageError, UserError
from trainer.runtime.progress import Progress
from trainer.runtime.signals import Flag

pytestmark = pytest.mark.processes


class Loop:
    """The training loop's use of a saver that writes shards; it saves every second step."""

    def __init__(self, out: Path, **config: object) -> None:
        words = {"save_steps": 2, "steps": 100, "async_save": True, "checkpoint": "sharded", **config}
        self.session = Session.start(out, **words)
        self.progress = Progress(self.session.checkpoints.group.rank, 100)
        self.saver = Saver(self.session.checkpoints, self.session.strategy, self.progress, lambda: None)
        self.step = 0

    def train(self, steps: int = 1, *, last: bool = False) -> Flag:
        flags = Flag.NONE
        for _ in range(steps):
            self.step += 1
            self.session.train()
            flags = self.saver.poll(self.step)
            self.saver.after_step(TrainState(self.step, 0, 9.0, 1.0), flags, {}, last=last)
        return flags

    @property
    def writer(self) -> subprocess.Popen[str]:
        process = self.saver._writer._process  # type: ignore[union-attr]  # it is known nowhere else
        assert process is not None
        return process

    @property
    def saved(self) -> list[str]:
        return [path.name for path in files.newest_first(self.session.checkpoints.out)]

    def save_held(self) -> None:
        """Save once, then begin another save, whose writer is stopped before it has begun."""
        self.train(2)
        assert self.saver.finish() == ""
        self.writer.send_signal(signal.SIGSTOP)
        self.train(2)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(tmp_path)
    yield loop
    if loop.saver._writer:
        loop.saver._writer.close()


def _parameters(session: Session) -> list[torch.Tensor]:
    state = session.strategy.optimizer.state_dict()["state"]
    return [*session.strategy.parameters, *(values[key] for values in state.values() for key in sorted(values))]


def test_the_first_save_finds_its_memory_and_process(loop: Loop) -> None:
    loop.train(1)
    writer = loop.saver._writer  # it is known nowhere else
    assert writer is not None
    assert writer._allocated is not None
    writer._allocated.result()
    pid, memory = writer.pid, writer.memory._mapped
    assert memory is not None
    loop.train(1)
    assert loop.saver.finish() == ""
    assert loop.saved == ["step_2"]
    assert writer.pid == pid
    assert writer.memory._mapped is memory


def test_shards_have_the_state_of_their_step_while_training_continues(loop: Loop, tmp_path: Path) -> None:
    reference = Session.start(tmp_path / "reference")
    for _ in range(4):
        reference.train()
    loop.save_held()
    assert loop.train(3) == Flag.WRITING | Flag.POSTPONE
    assert loop.saved == ["step_2"]
    loop.writer.send_signal(signal.SIGCONT)
    assert loop.saver.finish() == ""
    assert loop.progress.extra["saved"] == 4
    resumed = Session.start(tmp_path)
    assert resumed.resume() == TrainState(4, 0, 9.0, 1.0)
    assert all(map(torch.equal, _parameters(resumed), _parameters(reference)))


def test_shards_of_the_background_are_those_of_a_save_that_is_waited_for(loop: Loop, tmp_path: Path) -> None:
    waited = Loop(tmp_path / "waited", async_save=False)
    for each in (loop, waited):
        each.train(2)
        assert each.saver.finish() == ""
    names = sorted(path.name for path in (tmp_path / "step_2").iterdir())
    assert names == ["manifest.json", "r00000.safetensors", "rng.json"]
    shards = [folder / "step_2" / "r00000.safetensors" for folder in (tmp_path, tmp_path / "waited")]
    assert shards[0].read_bytes() == shards[1].read_bytes()


def test_save_that_fell_due_while_shards_were_written_follows_them(
    loop: Loop, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.save_held()
    loop.train(2)
    assert "step 4 is still being written: the save at step 6 is put off until it is\n" in capsys.readouterr().out
    loop.writer.send_signal(signal.SIGCONT)
    until(lambda: loop.train() and len(loop.saved) > 2, deadline_s=60, awaited="the save that was put off")
    assert loop.saver.finish() == ""


def test_save_due_at_the_step_after_one_has_begun_follows_it_without_an_exchange_of_flags(loop: Loop) -> None:
    loop.train(2)
    assert loop.saver.known_flags(3) == Flag.POSTPONE | Flag.WRITING
    assert loop.saver.finish() == ""
    assert not loop.saver.poll(5) & Flag.SAVE
    loop.train(2)
    assert loop.saver.known_flags(6) == Flag.POSTPONE | Flag.WRITING
    assert loop.saver.finish() == ""
    assert loop.saver.poll(7) & Flag.SAVE


def test_flags_are_exchanged_after_a_save_that_is_waited_for(tmp_path: Path) -> None:
    assert Loop(tmp_path, async_save=False).saver.known_flags(3) is None


def test_last_save_waits_for_the_shards_being_written(loop: Loop) -> None:
    loop.train(2)
    loop.train(last=True)
    assert loop.saved == ["step_3", "step_2"]


def test_killed_writer_is_reported_and_costs_no_older_checkpoint(loop: Loop, tmp_path: Path) -> None:
    loop.save_held()
    loop.writer.kill()
    loop.saver._writing.save.problem()  # type: ignore[union-attr]  # the condition to wait on
    with pytest.raises(
        StorageError, match=r"cannot save .*step_4: the process that writes checkpoints has ended, with code -9"
    ):
        loop.train()
    assert loop.saver.finish() == ""  # it is reported once
    assert loop.saved == ["step_2"]
    assert Session.start(tmp_path).resume().step == 2
    loop.step = 5
    loop.train()  # by another process
    assert loop.saver.finish() == ""
    assert loop.saved == ["step_6", "step_2"]


def test_failure_to_complete_a_checkpoint_is_reported(loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "step_2").write_text("a file in the way")
    loop.train(2)
    with pytest.raises(StorageError, match=r"cannot save .*step_2: .*(Not a directory|File exists)"):
        loop.train(last=True)


def test_rank_that_ends_alone_gives_up_the_shards_being_written(loop: Loop, tmp_path: Path) -> None:
    loop.save_held()
    writer = loop.writer
    problem = loop.saver.finish(alone=True)
    loop.saver._writer = None  # it is closed
    assert problem == f"cannot save {tmp_path}/step_4: other ranks have ended before all shards were written"
    assert writer.returncode == -signal.SIGKILL
    assert Session.start(tmp_path).resume().step == 2


def test_left_rank_that_writes_on_while_the_next_attempt_saves_the_same_step_changes_nothing_there(
    loop: Loop, tmp_path: Path
) -> None:
    """The rank of a node that was cut off, with another state; what it wrote is removed after the save."""
    reference = Loop(tmp_path / "reference", async_save=False)
    reference.train(4)
    loop.train(3)
    assert loop.saver.finish() == ""
    loop.writer.send_signal(signal.SIGSTOP)
    loop.session.train()
    loop.train()
    following = Loop(tmp_path)
    following.step = following.session.resume().step
    following.train()
    following.writer.send_signal(signal.SIGSTOP)
    following.train()
    loop.writer.send_signal(signal.SIGCONT)
    left = loop.saver._writing.save  # type: ignore[union-attr]  # it is known nowhere else
    assert left.problem() == ""
    assert (left.temporary / "r00000.safetensors").exists()  # type: ignore[union-attr]  # it is a ShardedSave
    following.writer.send_signal(signal.SIGCONT)
    assert following.saver.finish() == ""
    files.verified(tmp_path / "step_4")
    shards = [folder / "step_4" / "r00000.safetensors" for folder in (tmp_path, tmp_path / "reference")]
    assert shards[0].read_bytes() == shards[1].read_bytes()
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_2", "step_4"]
    following.saver._writer.close()  # type: ignore[union-attr]


def test_writer_lets_training_go_first_and_outlives_a_signal_to_end_the_rank(loop: Loop) -> None:
    loop.train(2)
    loop.saver.finish()
    assert os.getpriority(os.PRIO_PROCESS, loop.writer.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 10
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        loop.writer.send_signal(number)
    loop.train(2)
    assert loop.saver.finish() == ""
    assert loop.saved == ["step_4", "step_2"]


def test_memory_of_the_copy_is_reused(loop: Loop) -> None:
    loop.train(2)
    loop.saver.finish()
    first = loop.saver._writer.memory._mapped  # type: ignore[union-attr]
    assert first is not None
    loop.train(2)
    assert loop.saver._writer.memory._mapped is first  # type: ignore[union-attr]
    loop.saver.finish()


def test_rank_that_is_not_the_first_reports_that_it_writes_or_has_failed(loop: Loop) -> None:
    loop.save_held()
    saver = loop.saver
    saver.is_main = False
    assert saver.poll(5) == Flag.WRITING
    loop.writer.kill()
    until(lambda: saver.poll(5) == Flag.SAVE_FAILED, deadline_s=60, awaited="the report of the failure")


def test_saves_cost_no_more_than_their_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = Loop(tmp_path, async_save=False, save_share=0.5)
    loop.train(2)
    cost_s = loop.saver._cost_s  # measured
    assert cost_s > 0
    assert f"; save_share=0.5: the next in {2 * cost_s:.0f} s at the earliest" in capsys.readouterr().out
    loop.saver._cost_s = 1e6  # as if it had been
    loop.train(4)
    assert loop.saved == ["step_2"]
    loop.saver._cost_s = 0.0
    loop.train(2)
    assert loop.saved == ["step_8", "step_2"]
    loop.saver._cost_s = 1e6
    loop.train(last=True)
    assert loop.saved == ["step_9", "step_8", "step_2"]


def test_share_of_the_whole_time_is_refused() -> None:
    with pytest.raises(UserError, match=r"save_share=1: allowed: a share of the time below 1, such as 0\.02"):
        load_config(words=["save_share=1"])
    assert replace(load_config(), save_share=0.02) == load_config(words=["save_share=0.02"])
