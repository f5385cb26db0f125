"""Trainings of two ranks that are killed with SIGKILL at random moments, most of them during a save."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from bench.kills import KilledSaves
from tests.grounds.metrics import step_numbers
from tests.train.conftest import DEADLINE_S, Rank, StartRanks
from tests.until import until
from trainer.checkpoint.format import files

pytestmark = [pytest.mark.train, pytest.mark.slow]

KILLS = 5
# Checkpoints of megabytes: writing one takes longer than a step.
WORDS = ("steps=100", "micro_batch=1", "model.vocabulary=4000", "model.width=64")


def _size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:  # renamed since
        return 0


def _newest(out: Path) -> int:
    return next((files.step_of(path) or 0 for path in files.newest_first(out)), 0)


def _saved_since(out: Path, step: int, ranks: Sequence[Rank]) -> bool:
    ended = [rank for rank in ranks if rank.process.poll() is not None]
    assert not ended, "".join(f"rank {rank.number} ended before the first save: {rank.err}" for rank in ended)
    return _newest(out) > step


def _await_save(out: Path, size: float) -> None:
    """Wait until `size` bytes of a checkpoint are written, or another one is complete. Without pauses: the moment is short."""
    end, saved = time.monotonic() + DEADLINE_S, _newest(out)
    while _newest(out) == saved and not any(_size(path) >= size for path in out.glob("step_*.tmp-[0-9a-f]*")):
        assert time.monotonic() < end, f"nothing is saved after step {saved}"


@pytest.mark.extended
@pytest.mark.parametrize(
    "forms",
    [
        (("checkpoint=whole",), ("checkpoint=sharded",)),
        (("async_save=true",), ("async_save=true", "checkpoint=sharded")),
    ],
)
def test_training_killed_at_random_moments_of_a_save_loses_and_repeats_no_batch(
    start_ranks: StartRanks, tmp_path: Path, forms: Sequence[Sequence[str]]
) -> None:
    """The attempts save in the forms in turn, each from the checkpoint that the one before left."""
    draw, amid = random.Random(f"7 {forms}"), 0
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    assert [rank.wait() for rank in start_ranks(*WORDS, f"out={uninterrupted}")] == [0, 0]
    size = _size(uninterrupted / "step_100")
    for kill in range(KILLS):
        before = _newest(killed)
        ranks = start_ranks(*WORDS, "save_steps=1", *forms[kill % len(forms)], f"out={killed}")
        until(
            partial(_saved_since, killed, before, ranks), deadline_s=DEADLINE_S, awaited="a checkpoint of this attempt"
        )
        saved = _newest(killed)
        _await_save(killed, draw.uniform(0, 1.2) * size)
        for rank in draw.sample(ranks, 2):
            rank.process.kill()
        codes = [rank.wait() for rank in ranks]
        assert -signal.SIGKILL in codes
        assert not {0, 2} & set(codes)  # the survivor may exit before it is killed
        assert _newest(killed) >= saved
        for path in files.newest_first(killed):
            files.verify(path, files.step_of(path))
        amid += any(files.STALE.match(path.name) for path in killed.iterdir())
    assert amid > KILLS // 4  # or the kills did not hit the saves
    assert [rank.wait() for rank in start_ranks(*WORDS, f"out={killed}")] == [0, 0]
    assert step_numbers(killed) == step_numbers(uninterrupted)
    assert (killed / "step_100/r00000.safetensors").read_bytes() == (
        uninterrupted / "step_100/r00000.safetensors"
    ).read_bytes()


def test_kills_of_ranks_and_of_processes_that_write_leave_the_checkpoints_of_an_undisturbed_training(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    """`python -m bench.kills` does so 200 times, each time from what the kill before has left."""
    saves = KilledSaves(start_ranks, tmp_path, seed=4, steps=20)
    for _ in range(3):
        saves.kill_one()
    saves.continue_once()
    assert min(saves.kills.values()) >= 1
    assert saves.checked >= 3
