"""The checkpoint folder: its owner, its permissions and the disk space that it needs."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.grounds.checkpoints import Session
from tests.grounds.killed_writers import CALLS
from tests.grounds.mounts import fill, in_own_mounts, make_read_only, mount
from trainer.checkpoint.format import files
from trainer.checkpoint.save.space import saves_after
from trainer.config.load import load_config
from trainer.errors import StorageError, TrainerError, UserError


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_out_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(mode)
    with pytest.raises(UserError, match=rf"out=.*out: others may write it \(mode {mode:o}\): chmod -R go-w"):
        Session.start(out)


def test_only_the_user_and_root_are_trusted(tmp_path: Path) -> None:
    mine = tmp_path.stat()
    owned = {uid: files.trust_problem(os.stat_result((*mine[:4], uid, *mine[5:]))) for uid in (os.geteuid(), 0, 4711)}
    assert owned == {os.geteuid(): "", 0: "", 4711: f"belongs to uid 4711, not to uid {os.geteuid()} or root"}


@pytest.mark.skipif(os.geteuid() != 0, reason="chown needs root")
def test_out_of_another_user_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, 4711, -1)
    with pytest.raises(UserError, match=r"out=.*out: belongs to uid 4711, not to uid 0 or root"):
        Session.start(out)


def _sizes(checkpoint_bytes: int) -> dict[str, int]:
    """The size of one parameter whose checkpoint has about this many bytes."""
    return {"weight": checkpoint_bytes // 12}


def test_too_small_disk_is_an_error_with_sizes_and_remedy(tmp_path: Path) -> None:
    session = Session.start(tmp_path, steps=100, save_steps=10, save_total_limit=2, keep_best=1)
    session.checkpoints.check_space(_sizes(10**6), 0)
    whole_disk = shutil.disk_usage(tmp_path).total
    with pytest.raises(
        UserError, match=r"out=.*GB free, .* GB needed for 1 checkpoints of .*; free some, name another"
    ):
        session.checkpoints.check_space(_sizes(whole_disk), 90)
    with pytest.raises(UserError, match="needed for 4 checkpoints"):
        session.checkpoints.check_space(_sizes(whole_disk // 3), 0)
    session.train_and_save(1, 2)
    forever = replace(session.checkpoints, config=replace(session.checkpoints.config, keep_every=2))
    with pytest.raises(UserError, match="needed for 10 checkpoints"):
        forever.check_space(_sizes(whole_disk), 80)
    with pytest.raises(UserError, match="needed for 2 checkpoints"):
        session.checkpoints.check_space(_sizes(whole_disk), 0)
    session.checkpoints.check_space(_sizes(whole_disk), 100)  # nothing left to save


@pytest.mark.parametrize(
    ("step", "words", "count"),
    [
        (0, "", 2),
        (0, "steps=101", 3),
        (50, "", 1),
        (99, "", 1),
        (100, "", 0),
        (0, "save_minutes=1", 100),
        (0, "keep_every=40", 4),
        (50, "keep_every=60", 2),
        (0, "keep_every=70", 3),
    ],
)
def test_number_of_remaining_saves(step: int, words: str, count: int) -> None:
    assert saves_after(step, load_config(words=words.split())) == count


@pytest.mark.parametrize("form", ["whole", "sharded"])
def test_disk_that_fills_up_during_a_save_costs_no_older_checkpoint(tmp_path: Path, form: str) -> None:
    session = Session.start(tmp_path, checkpoint=form)
    session.train_and_save(1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(TrainerError, match=r"cannot save .*step_2: ") as caught:
            session.train_and_save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.exit_code == 1
    assert Session.start(tmp_path).resume().step == 1


@pytest.mark.parametrize("form", ["whole", "sharded"])
def test_error_of_any_call_of_a_save_is_reported_and_costs_no_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    session = Session.start(tmp_path, checkpoint=form, save_total_limit=1)
    session.train_and_save(1)
    problems: list[str] = []
    for step in range(2, 100):
        newest = files.newest_first(tmp_path)[0]
        with monkeypatch.context() as patched:
            remaining = iter(range(len(problems)))  # calls that succeed
            for name in CALLS:
                patched.setattr(os, name, _failing(getattr(os, name), remaining))
            problem = _problem_of_save(session, step)
        left = files.newest_first(tmp_path)
        assert left[0] in (newest, tmp_path / f"step_{step}")
        for path in left:
            files.verify(path, files.step_of(path))
        if not problem:
            break
        problems.append(problem)
        assert problem.startswith(f"cannot save {tmp_path}/step_{step}: ")
    assert 10 < len(problems) < 90


def _problem_of_save(session: Session, step: int) -> str:
    try:
        session.train_and_save(step)
    except StorageError as exc:
        return str(exc)
    return ""


def _failing(call: Callable[..., object], remaining: Iterator[int]) -> Callable[..., object]:
    """The call, which fails when nothing remains."""

    def replacement(*args: object, **more: object) -> object:
        if next(remaining, None) is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*args, **more)

    return replacement


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
@pytest.mark.parametrize(("damage", "problem"), [(fill, "No space left"), (make_read_only, "Read-only file system")])
def test_save_to_a_full_or_read_only_file_system_fails_and_costs_no_older_checkpoint(
    tmp_path: Path, damage: Callable[[Path], None], problem: str
) -> None:
    def save_twice() -> TrainerError:
        mount(tmp_path, size="16m")
        session = Session.start(tmp_path)
        session.train_and_save(1)
        damage(tmp_path)
        with pytest.raises(TrainerError, match=problem) as caught:
            session.train_and_save(2)
        assert files.verify(tmp_path / "step_1", 1)
        return caught.value

    assert in_own_mounts(save_twice).kind == "storage"
