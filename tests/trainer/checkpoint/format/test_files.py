"""Checkpoints that are damaged, half written, or of another training; one process, real files."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import stat
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.grounds.checkpoints import DAMAGES, SHARD, TINY, Session, flip, to_state_pt
from trainer.checkpoint.format import files
from trainer.checkpoint.format.files import DamagedError
from trainer.checkpoint.load.compatibility import differences
from trainer.checkpoint.load.state_pt import load_state
from trainer.checkpoint.load.whole import allocate, outline
from trainer.checkpoint.manager import TrainState
from trainer.checkpoint.save.code import code_version
from trainer.config.config import DataConfig
from trainer.config.load import load_config
from trainer.errors import StorageError, TrainerError, UserError


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != files.LOCK)


def test_resume_restores_everything_that_was_saved(tmp_path: Path) -> None:
    random.seed(4)
    torch.manual_seed(4)
    first = Session.start(tmp_path)
    first.train_and_save(1, 2)
    drawn = random.random(), float(torch.rand(()))  # this test is about the generator
    random.seed(5)
    second = Session.start(tmp_path)
    assert second.resume() == TrainState(2, 4, 5.5, 0.5)
    assert second.weights() == first.weights()
    assert (random.random(), float(torch.rand(()))) == drawn
    for saved, resumed in zip(
        first.strategy.optimizer.state.values(), second.strategy.optimizer.state.values(), strict=True
    ):
        assert all(torch.equal(saved[name], resumed[name]) for name in ("exp_avg", "exp_avg_sq", "step"))


def test_files_are_private_and_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    Session.start(out).train_and_save(1)
    assert _names(out) == ["latest", "step_1"]
    assert (out / "latest").read_text() == "step_1\n"
    assert _names(out / "step_1") == ["manifest.json", SHARD, "rng.json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*") if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (out, out / "step_1")} == {0o700}
    manifest = json.loads((out / "step_1" / "manifest.json").read_text())
    assert (manifest["step"], manifest["world_size"], manifest["config"]["model"]["width"]) == (1, 1, 8)


@pytest.mark.parametrize("is_state_pt", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_newest_checkpoint_is_quarantined_and_the_older_one_resumed(
    tmp_path: Path, damage: str, is_state_pt: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of the form of earlier versions."""
    Session.start(tmp_path).train_and_save(1, 2)
    for step in (1, 2) if is_state_pt else ():
        to_state_pt(tmp_path / f"step_{step}")
    DAMAGES[damage](tmp_path / "step_2")
    assert Session.start(tmp_path).resume().step == 1
    assert _names(tmp_path / "quarantine") == ["step_2-0"]
    shown = capsys.readouterr().out
    assert "damaged checkpoint step_2 (" in shown
    assert "resuming from" in shown


def test_same_step_can_be_damaged_twice(tmp_path: Path) -> None:
    for _ in range(2):
        session = Session.start(tmp_path)
        if files.newest_first(tmp_path):
            session.resume()
        else:
            session.train_and_save(1)
        session.train_and_save(2)
        flip(tmp_path / "step_2" / SHARD)
        assert Session.start(tmp_path).resume().step == 1
    assert _names(tmp_path / "quarantine") == ["step_2-0", "step_2-1"]


def test_resume_with_only_damaged_checkpoints_never_starts_at_step_0(tmp_path: Path) -> None:
    Session.start(tmp_path).train_and_save(1)
    flip(tmp_path / "step_1" / SHARD)
    for _ in range(2):  # the second start finds only the quarantine
        with pytest.raises(UserError, match=r"nothing loadable in .* 1 set aside"):
            Session.start(tmp_path).resume()
    assert Session.start(tmp_path, resume="none").resume().step == 0


@pytest.mark.parametrize("content", [b"", b"step_77\n", None])
def test_resume_ignores_the_content_of_latest(tmp_path: Path, content: bytes | None) -> None:
    Session.start(tmp_path).train_and_save(1)
    if content is None:
        (tmp_path / "latest").unlink()
    else:
        (tmp_path / "latest").write_bytes(content)
    assert Session.start(tmp_path).resume().step == 1


def test_stale_half_written_folder_is_removed_and_never_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Session.start(tmp_path).train_and_save(1)
    shutil.copytree(tmp_path / "step_1", tmp_path / "step_2.tmp-4711")
    assert Session.start(tmp_path).resume().step == 1
    assert "removed step_2.tmp-4711" in capsys.readouterr().out
    assert _names(tmp_path) == ["latest", "step_1"]


def test_unfinished_save_to_which_a_left_rank_still_writes_is_removed_by_a_later_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Session.start(tmp_path).train_and_save(1)
    unfinished, rmdir = tmp_path / "step_2.tmp-4711", os.rmdir
    unfinished.mkdir()

    def write_before(path: str, **more: Any) -> None:
        (unfinished / "r00001.safetensors").touch()
        rmdir(path, **more)

    monkeypatch.setattr(os, "rmdir", write_before)
    session = Session.start(tmp_path)
    assert "removed" not in capsys.readouterr().out
    session.train_and_save(2)
    assert unfinished.exists()
    monkeypatch.undo()
    session.train_and_save(3)
    assert not unfinished.exists()


def test_unfinished_save_that_cannot_be_removed_for_another_reason_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step_2.tmp-4711").mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(UserError, match="cannot be written: Permission denied"):
        Session.start(tmp_path)


def test_renamed_checkpoint_counts_as_damaged(tmp_path: Path) -> None:
    Session.start(tmp_path).train_and_save(1)
    (tmp_path / "step_1").rename(tmp_path / "step_9")
    with pytest.raises(DamagedError, match="is of step 1"):
        files.verified(tmp_path / "step_9")


def test_oldest_checkpoints_beyond_the_limit_are_removed_by_step_number(tmp_path: Path) -> None:
    Session.start(tmp_path, save_total_limit=2).train_and_save(8, 9, 10)
    assert _names(tmp_path) == ["latest", "step_10", "step_9"]


def test_best_checkpoints_are_kept_beside_the_newest(tmp_path: Path) -> None:
    session = Session.start(tmp_path, save_total_limit=2, keep_best=2)
    for step, loss in enumerate([3.0, 1.0, 4.0, 1.5, 9.0, 2.0], start=1):
        session.train_and_save(step, mean_loss=loss)
    assert _names(tmp_path) == ["latest", "step_2", "step_4", "step_5", "step_6"]


def test_best_checkpoints_are_chosen_by_evaluation_loss_if_there_is_one(tmp_path: Path) -> None:
    session = Session.start(tmp_path, save_total_limit=2, keep_best=2)
    for step, loss in enumerate([None, 3.0, math.nan, 2.0, 9.0, None, None, None], start=1):
        session.train()
        session.checkpoints.save(TrainState(step, mean_loss=1 / step, eval_loss=loss), session.strategy)
    assert _names(tmp_path) == ["latest", "step_2", "step_4", "step_7", "step_8"]


def test_milestones_are_kept_for_good(tmp_path: Path) -> None:
    """No save at step 6: the first checkpoint after a multiple of `keep_every` is the milestone."""
    session = Session.start(tmp_path, save_total_limit=2, keep_every=3)
    session.train_and_save(1, 2, 3, 4, 5, 7, 8, 9, 10, 11)
    assert [path.name for path in files.newest_first(tmp_path)] == ["step_11", "step_10", "step_9", "step_7", "step_3"]


def test_manifest_names_the_code(tmp_path: Path) -> None:
    """The bundle if orch sent the code, else the commit of the work tree."""
    assert code_version(tmp_path / "bundles" / "0a1b" / "trainer", tmp_path) == "bundle 0a1b"
    assert code_version(tmp_path / "site-packages" / "trainer", tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.com"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert code_version(tmp_path / "trainer", tmp_path) == f"git {commit}"
    (tmp_path / "new.py").touch()
    subprocess.run([*git, "add", "new.py"], check=True)
    assert code_version(tmp_path / "trainer", tmp_path) == f"git {commit}-dirty"
    session = Session.start(tmp_path / "out")
    session.checkpoints = replace(session.checkpoints, code="bundle 0a1b")
    session.train_and_save(1)
    assert files.read_manifest(tmp_path / "out" / "step_1", 1)["code"] == "bundle 0a1b"


@pytest.mark.parametrize(
    ("last", "step", "position"),
    [(None, 3, 0), (2, 3, 0), (3, 2, 5)],
    ids=["first roll back", "saved since", "not saved since"],
)
def test_roll_back_takes_the_newest_checkpoint_or_the_one_before_if_that_did_not_help(
    tmp_path: Path, last: int | None, step: int, position: int
) -> None:
    session = Session.start(tmp_path)
    for number, data_position in ((2, 5), (3, 0)):
        session.train()
        session.checkpoints.save(TrainState(number, position=data_position), session.strategy)
    session.train()
    found = session.checkpoints.load_earlier(session.strategy, last)
    assert found == TrainState(step, position=position)
    assert [path.name for path in files.newest_first(tmp_path)] == [f"step_{number}" for number in range(step, 1, -1)]


def test_roll_back_needs_a_checkpoint_and_may_reuse_the_only_one(tmp_path: Path) -> None:
    session = Session.start(tmp_path)
    assert session.checkpoints.load_earlier(session.strategy, None) is None
    session.train_and_save(1)
    assert session.checkpoints.load_earlier(session.strategy, 1) == TrainState(1, 2, 5.5, 1.0)


def test_checkpoint_of_unknown_loss_is_never_the_best(tmp_path: Path) -> None:
    session = Session.start(tmp_path, save_total_limit=2, keep_best=2)
    session.train_and_save(1, mean_loss=9.0)
    session.train_and_save(2, mean_loss=None)
    session.train_and_save(3, mean_loss=1.0)
    flip(tmp_path / "step_3" / "manifest.json")
    session.train_and_save(4, 5, mean_loss=None)
    assert _names(tmp_path) == ["latest", "step_1", "step_4", "step_5"]


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_state_that_holds_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    """Its hash and seal are valid."""
    session = Session.start(tmp_path / "out")
    session.train_and_save(1)
    to_state_pt(tmp_path / "out" / "step_1", state={"model": Payload(tmp_path / "made")})
    with pytest.raises(UserError, match=r"step_1: state\.pt: ") as caught:
        Session.start(tmp_path / "out").resume()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made").exists()


def test_checkpoint_of_an_older_trainer_without_newer_entries_loads_if_the_model_fits(tmp_path: Path) -> None:
    session = Session.start(tmp_path / "new")
    session.train()
    session.checkpoints.save(TrainState(1, skipped=3), session.strategy)
    assert session.resume() == TrainState(1, skipped=3)
    old = Session.start(tmp_path / "old")
    shutil.move(tmp_path / "new" / "step_1", tmp_path / "old" / "step_1")
    newer = ("skipped", "planned_steps", "sizes")
    to_state_pt(tmp_path / "old" / "step_1", *newer, sizes=list(session.strategy.sizes))
    assert old.resume() == TrainState(1, planned_steps=session.checkpoints.config.steps)
    assert old.weights() == session.weights()
    saved, resumed = (found.strategy.optimizer.state.values() for found in (session, old))
    for before, after in zip(saved, resumed, strict=True):
        assert all(torch.equal(before[name], after[name]) for name in ("exp_avg", "exp_avg_sq", "step"))
    old.strategy.sizes = {**old.strategy.sizes, "gate.weight": 3}  # the code of the task was changed
    with pytest.raises(UserError, match=r"step 1 does not fit: gate\.weight of no -> 3 numbers \(saved -> now\)$"):
        old.resume()


def test_resume_restores_the_state_of_numpy_generators(tmp_path: Path) -> None:
    Session.start(tmp_path).train_and_save(1)
    drawn = np.random.rand()  # the global generator is what users' tasks draw from
    Session.start(tmp_path).resume()
    assert np.random.rand() == drawn


@pytest.mark.parametrize("form", ["whole", "sharded"])
def test_full_disk_is_named_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    session = Session.start(tmp_path, checkpoint=form)

    def fail(*_: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", fail)
    with pytest.raises(
        StorageError, match=r"cannot save .*step_1: No space left on device; free some space, and start again$"
    ):
        session.train_and_save(1)


def test_failed_save_keeps_older_checkpoints_and_names_the_reason(tmp_path: Path) -> None:
    session = Session.start(tmp_path, save_total_limit=2)
    session.train_and_save(1, 2)
    (tmp_path / "step_3").write_text("a file in the way")
    with pytest.raises(TrainerError, match=r"cannot save .*step_3") as caught:
        session.train_and_save(3)
    assert (caught.value.exit_code, caught.value.kind) == (1, "storage")
    assert {"step_1", "step_2"} <= set(_names(tmp_path))


def test_unwritable_out_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"out=.*cannot be written"):
        Session.start(tmp_path / "file")


def test_fresh_start_refuses_a_folder_with_another_training(tmp_path: Path) -> None:
    Session.start(tmp_path).train_and_save(1)
    with pytest.raises(UserError, match="holds step_1 of an earlier training"):
        Session.start(tmp_path, resume="none").resume()


def test_resume_from_elsewhere_refuses_a_folder_with_another_training(tmp_path: Path) -> None:
    for name in ("old", "out"):
        Session.start(tmp_path / name).train_and_save(1)
    with pytest.raises(UserError, match=r"resume=.*old, but .*out holds step_1 of an earlier training"):
        Session.start(tmp_path / "out", resume=str(tmp_path / "old")).resume()


def test_auto_starts_afresh_in_an_empty_folder(tmp_path: Path) -> None:
    assert Session.start(tmp_path).resume() == TrainState()


def test_resume_from_a_named_checkpoint_quarantines_later_ones(tmp_path: Path) -> None:
    Session.start(tmp_path).train_and_save(1, 2)
    assert Session.start(tmp_path, resume=str(tmp_path / "step_1")).resume().step == 1
    assert _names(tmp_path / "quarantine") == ["step_2-0"]


def test_resume_from_a_named_folder_takes_its_newest_whole_checkpoint_and_changes_nothing(tmp_path: Path) -> None:
    Session.start(tmp_path / "old").train_and_save(1, 2)
    flip(tmp_path / "old" / "step_2" / SHARD)
    assert Session.start(tmp_path / "new", resume=str(tmp_path / "old")).resume().step == 1
    assert _names(tmp_path / "old") == ["latest", "step_1", "step_2"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing", "missing: No such file or directory$"),
        ("step_1", "step_1: r00000.safetensors: its hash"),
        ("empty", "empty: manifest.json: No such file"),
    ],
)
def test_named_checkpoint_that_cannot_be_loaded_is_an_error(tmp_path: Path, name: str, problem: str) -> None:
    Session.start(tmp_path / "old").train_and_save(1)
    (tmp_path / "old" / "empty").mkdir()
    flip(tmp_path / "old" / "step_1" / SHARD)
    with pytest.raises(UserError, match=f"resume=.*{name}: no checkpoint could be loaded: {problem}"):
        Session.start(tmp_path / "new", resume=str(tmp_path / "old" / name)).resume()


@pytest.mark.parametrize("resume", ["none", "elsewhere"])
def test_retry_resumes_from_its_own_checkpoints_whatever_resume_is_set_to(tmp_path: Path, resume: str) -> None:
    Session.start(tmp_path).train_and_save(1)
    session = Session.start(tmp_path, resume=resume)
    group = session.checkpoints.group
    retry = replace(session.checkpoints, group=replace(group, rank=replace(group.rank, is_retry=True)))
    assert retry.resume(session.strategy).step == 1


def test_different_model_is_refused_and_different_settings_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Session.start(tmp_path).train_and_save(1)
    with pytest.raises(UserError, match=r"does not fit: model\.width: 8 -> 16"):
        Session.start(tmp_path, model=replace(TINY, width=16)).resume()
    session = Session.start(tmp_path)  # the code of a task was changed, its settings were not
    session.strategy.sizes = {**session.strategy.sizes, "head.weight": 7, "gate.weight": 3}
    with pytest.raises(
        UserError, match=r"does not fit: gate\.weight of no -> 3 numbers, head\.weight of \d+ -> 7 numbers"
    ):
        session.resume()
    assert Session.start(tmp_path, seed=3, log_steps=1, start_timeout=9.0).resume().step == 1
    assert "WARNING: resuming with other settings (saved -> now): seed: 0 -> 3\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "mine.tasks:Other"}, r"does not fit: task: \"trainer\.tasks\.gpt:Gpt\" -> \"mine\.tasks:Other\""),
        ({"options": {"width": 3}}, r"does not fit: options\.width: null -> 3"),
    ],
)
def test_different_task_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    Session.start(tmp_path).train_and_save(1)
    with pytest.raises(UserError, match=message):
        Session.start(tmp_path, **change).resume()


def test_different_data_are_refused_but_data_may_be_moved(tmp_path: Path) -> None:
    Session.start(tmp_path).train_and_save(1)
    session = Session.start(tmp_path, data=DataConfig(paths=("moved",)))
    assert session.resume().step == 1
    with pytest.raises(
        UserError, match=r"checkpoint at step 1 was trained on other data.*resume=none and another out="
    ):
        replace(session.checkpoints, data_digest="other").resume(session.strategy)


def test_settings_that_do_not_affect_the_numbers_may_change() -> None:
    words = [
        "out=x",
        "resume=none",
        "save_steps=1",
        "log_steps=1",
        "device=cpu",
        "ddp_timeout=5",
        "report=",
        "peak_tflops=1",
    ]
    free = load_config(words=words)
    assert differences(load_config().as_dict(), free.as_dict()) == {}
    assert list(differences(load_config().as_dict(), load_config(words=["optim.grad_clip=2"]).as_dict())) == [
        "optim.grad_clip"
    ]


def test_another_world_size_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Session.start(tmp_path).train_and_save(1)
    session = Session.start(tmp_path)
    group = session.checkpoints.group
    second = replace(session.checkpoints, group=replace(group, rank=replace(group.rank, world_size=4)))
    assert second.resume(session.strategy).step == 1
    assert "WARNING: the checkpoint was written by 1 ranks and is split over 4 now" in capsys.readouterr().out


def test_outline_has_everything_but_the_values_of_large_tensors() -> None:
    large, small = torch.arange(9999.0).view(3, 3333), torch.arange(3)
    state = {
        "model": {"a": large, "b": small},
        "optimizer": {"state": {0: {"step": torch.tensor(4.0)}}, "betas": (0.9, 1)},
    }
    text = outline(state)
    assert len(text) < large.numel()
    back = allocate(text, "step_1")
    assert (back["model"]["a"].shape, back["model"]["a"].is_contiguous()) == (large.shape, True)
    assert torch.equal(back["model"]["b"], small)
    assert (back["optimizer"]["state"][0]["step"], back["optimizer"]["betas"]) == (4.0, (0.9, 1))


def test_state_can_be_memory_mapped(tmp_path: Path) -> None:
    Session.start(tmp_path).train_and_save(1)
    to_state_pt(tmp_path / "step_1")
    path = tmp_path / "step_1" / "state.pt"
    with path.open("rb") as file:
        read, mapped = (load_state(source, "step_1")["model"] for source in (file, path))
    assert str(path.resolve()) in Path("/proc/self/maps").read_text()
    assert all(torch.equal(read[name], mapped[name]) for name in read)


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="chown needs root")
def test_folder_of_another_user_is_quarantined_without_root() -> None:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        (out / "step_2").mkdir(mode=0o755)
        os.chown(out, 4711, -1)
        child = os.fork()
        if not child:
            try:
                os.setuid(4711)
                os._exit(files.quarantine(out, out / "step_2").name != "quarantined-step_2-0")
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert files.quarantined(out) == 1
        assert files.newest_first(out) == []


@pytest.mark.processes
def test_folder_in_use_is_refused_until_its_process_has_ended(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    ready, release = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(writing)
            files.lock(tmp_path, "20260101-000000-abcd")
            os.write(release, b"x")
            os.read(reading, 1)
        finally:
            os._exit(0)
    os.read(ready, 1)
    try:
        with pytest.raises(
            UserError, match=rf"out=.* is in use by run 20260101-000000-abcd, pid {child} on .*: choose"
        ):
            Session.start(tmp_path)
        assert files.lock(tmp_path, "20260101-000000-abcd") == ""  # the next attempt of the same run
    finally:
        os.close(writing)
        os.waitpid(child, 0)
    Session.start(tmp_path)
