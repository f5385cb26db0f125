"""The model of a training that continues from a checkpoint: its weights are those of the checkpoint, and none is drawn."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.grounds.trainings import TINY, train_alone
from trainer.checkpoint.load.find import saved_settings
from trainer.config.load import load_config
from trainer.runtime.init import initialise
from trainer.tasks.gpt import Gpt

pytestmark = pytest.mark.trains

WORDS = (*TINY, "steps=4", "save_steps=2", f"data.paths={__file__}")


def test_resume_draws_no_weights_and_continues_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train_alone(load_config(words=[*WORDS, f"out={whole}"]))
    shutil.copytree(whole / "step_2", resumed / "step_2")

    def draw(*_: object) -> None:
        pytest.fail("a checkpoint replaces these weights")

    monkeypatch.setattr(Gpt, "initialise", draw)
    train_alone(load_config(words=[*WORDS, f"out={resumed}"]))
    for name in ("r00000.safetensors", "rng.json"):
        assert (resumed / "step_4" / name).read_bytes() == (whole / "step_4" / name).read_bytes()


@pytest.mark.parametrize(
    ("resume", "attempt", "steps"),
    [("auto", "1", 4), ("none", "1", None), ("none", "2", 4), ("{other}", "1", 2), ("{other}", "2", 4)],
)
def test_settings_are_those_of_the_checkpoint_that_is_found_later(
    tmp_path: Path, resume: str, attempt: str, steps: int | None
) -> None:
    """A retry prefers its own checkpoints; a damaged one is passed over."""
    out, second = tmp_path / "out", tmp_path / "other"
    train_alone(load_config(words=[*WORDS, f"out={out}"]))
    train_alone(load_config(words=[*WORDS, "steps=2", f"out={second}"]))
    shutil.copytree(out / "step_4", out / "step_9")  # whose manifest is of another step
    (out / "step_9" / "manifest.json").write_text("{}")
    group = initialise("cpu", 60.0, {"ORCH_ATTEMPT": attempt})
    config = load_config(words=[*WORDS, f"out={out}", f"resume={resume.format(other=second)}"])
    found = saved_settings(group, config)
    assert (found and found["steps"]) == steps
